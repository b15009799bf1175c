"""The peer: two towers on TFRA's dynamic embeddings in Redis. Run by a Python that has TFRA (`environment.py`).

As its documentation does it: `Embedding` layers with a RedisTableCreator that is told by a JSON file, legacy Adam under
DynamicEmbeddingOptimizer, one compiled train step. A grouped loss is written into that step by hand, as TFRA has none.
Reads ids from a file and prints one JSON object. Imports nothing of this project.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ["TF_USE_LEGACY_KERAS"] = "1"  # TFRA 0.8.1 is built on Keras 2
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf
import tf_keras  # type: ignore[import-not-found]
from tensorflow_recommenders_addons import dynamic_embedding as de  # type: ignore[import-not-found]


def main() -> None:
    """Train for some steps and print how long they took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ids", type=Path, help=".npz with user (n,) and item (n,) int64")
    parser.add_argument("--port", type=int, required=True, help="of a Redis that is empty")
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--group", type=int, default=0, help="examples of a softmax group; 0: the batch")
    parser.add_argument("--warm-up", type=int, default=20, help="steps that are not timed")
    parser.add_argument("--steps", type=int, default=100, help="steps that are timed")
    arguments = parser.parse_args()
    seconds_each = train(arguments)
    print(json.dumps({"seconds_each": seconds_each, "batch": arguments.batch, "loss_group": arguments.group}))


def train(arguments: argparse.Namespace) -> list[float]:
    """Seconds of each step after the warm-up."""
    with np.load(arguments.ids) as ids:
        users, items = ids["user"], ids["item"]
    batch, group = arguments.batch, arguments.group or arguments.batch
    if batch % group:
        sys.exit(f"batch {batch} is not a multiple of group {group}")

    def embedding(name: str) -> Any:
        creator = de.RedisTableCreator(de.RedisTableConfig(redis_config_abs_dir=_configured(arguments.port)))
        return de.keras.layers.Embedding(64, kv_creator=creator, name=name, init_capacity=1)

    def tower() -> Any:
        return tf_keras.Sequential([tf_keras.layers.Dense(64, "relu"), tf_keras.layers.Dense(32)])

    user_rows, item_rows, user_tower, item_tower = embedding("user"), embedding("item"), tower(), tower()
    optimizer = de.DynamicEmbeddingOptimizer(tf_keras.optimizers.legacy.Adam(1e-3))
    labels = tf.tile(tf.range(group), [batch // group])

    @tf.function
    def step(user: Any, item: Any) -> Any:
        with tf.GradientTape() as tape:
            left = tf.reshape(user_tower(user_rows(user)), [-1, group, 32])
            right = tf.reshape(item_tower(item_rows(item)), [-1, group, 32])
            logits = tf.reshape(tf.matmul(left, right, transpose_b=True), [-1, group])
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
        variables = [v for part in (user_rows, item_rows, user_tower, item_tower) for v in part.trainable_variables]
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    if len(users) < (arguments.warm_up + arguments.steps) * batch:
        sys.exit(f"{len(users)} ids are not enough for {arguments.warm_up} + {arguments.steps} steps of {batch}")
    took: list[float] = []
    for number in range(arguments.warm_up + arguments.steps):
        chosen = slice(number * batch, (number + 1) * batch)
        started = time.perf_counter()
        loss = float(step(tf.constant(users[chosen]), tf.constant(items[chosen])))
        took.append(time.perf_counter() - started)
        if not np.isfinite(loss):
            sys.exit(f"step {number}: the loss is {loss}")
    return took[arguments.warm_up :]


def _configured(port: int) -> str:
    """Path of the JSON file that TFRA reads: a server of its own, nothing restored from a file."""
    settings = {
        "redis_connection_mode": 2,
        "redis_host_ip": ["127.0.0.1"],
        "redis_host_port": [port],
        "redis_db": 0,
        "storage_slice": 1,
        "keys_sending_size": 1024,
        "model_tag_import": "peer",
        "model_tag_runtime": "peer",
        "table_store_mode": 2,
    }
    with tempfile.NamedTemporaryFile("w", suffix=".json", delete=False) as file:
        json.dump(settings, file)
    return file.name


if __name__ == "__main__":
    main()
