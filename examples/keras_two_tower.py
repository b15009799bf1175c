"""A Keras two-tower whose embeddings are Towline tables: what TFRA's `Embedding` layers and their optimizer did before.

The towers stay Keras. Rows are looked up, tape.gradient gives their gradients, and the store applies them: any number
of such loops may train the same tables at once. Run it: python -m examples.keras_two_tower
"""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

from embedding_store.contract import EmbeddingStore
from embedding_store.memory import MemoryStore  # or embedding_store.open.open_store(RedisSettings(url=…))
from embedding_store.spec import Adagrad, TableSpec
from embedding_store.training_client import TrainingClient

DIM = 16


def train(store: EmbeddingStore, batches: list[tuple[np.ndarray, np.ndarray]], client: str = "notebook") -> list[float]:
    """Learn batches of (user ids, item ids) by in-batch softmax; the loss of each."""
    tables = [
        TableSpec(name=n, dim=DIM, optimizer=Adagrad(learning_rate=0.1), initial_std=0.1) for n in ("user", "item")
    ]
    towline = TrainingClient(store, client, tables)
    towers = [keras.Sequential([keras.layers.Dense(32, activation="relu"), keras.layers.Dense(DIM)]) for _ in tables]
    optimizer = keras.optimizers.Adam(0.01)
    losses = []
    for ids in batches:
        rows = [tf.Variable(towline.lookup(t.name, i).vectors) for t, i in zip(tables, ids, strict=True)]
        with tf.GradientTape() as tape:
            users, items = (tower(r) for tower, r in zip(towers, rows, strict=True))
            logits = tf.matmul(users, items, transpose_b=True)
            same = tf.cast(ids[1][:, None] == ids[1][None, :], tf.float32)  # an item that comes twice is right twice
            loss = tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(same / tf.reduce_sum(same, 1), logits))
        weights = [w for tower in towers for w in tower.trainable_weights]
        *dense, user_gradients, item_gradients = tape.gradient(loss, [*weights, *rows])
        optimizer.apply_gradients(zip(dense, weights, strict=True))
        towline.apply("user", ids[0], user_gradients)
        towline.apply("item", ids[1], item_gradients)
        losses.append(float(loss))
    return losses


if __name__ == "__main__":
    rng = np.random.default_rng(0)
    everyone = [rng.integers(0, 200, 128) for _ in range(150)]
    print(train(MemoryStore(), [(u, 10 * (u % 8) + rng.integers(0, 10, 128)) for u in everyone])[::10])
