"""The softmax step of towers with dense layers.

On a processor the layers are products by BLAS (`trainer.dense_layers`), and the softmax between the towers' outputs is
that of towers without layers: a call of TensorFlow costs a millisecond however few examples it has, and inside it a
group's logits are read and written a dozen times. Items' layers are not here but in `trainer.item_tower`, for a row of
a micro-batch is many examples' target. Where TensorFlow sees an accelerator, all of it is TensorFlow's, and its
gradients are the oracle of the other.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from embedding_store.contract import F32, Bool
from embedding_store.model import ModelSettings
from embedding_store.towers import SHORTEST
from trainer.dense import DenseWorker
from trainer.dense_layers import input_gradients, outputs
from trainer.item_tower import ItemTower
from trainer.similarity import scaled
from trainer.softmax_step import Gradients, SoftmaxStep, step_without_layers

_NEVER = np.float32(-1e30)
"""Logit of a column left out: finite, so that its gradient is an exact zero and not NaN."""


def has_accelerator() -> bool:
    """Whether TensorFlow sees one."""
    return bool(tf.config.list_logical_devices("GPU"))


def step_with_user_layers(model: ModelSettings, dense: DenseWorker, smoothing: float) -> SoftmaxStep:
    """The step for any towers, with groups of any size, between users before their layers and items behind theirs.

    `items` and their gradients are (n, output_dim): `trainer.item_tower` has the rest. Parameters are those of `dense`
    when it is called.
    """
    softmax = scaled(step_without_layers(smoothing), cosine=model.similarity == "cosine", temperature=model.temperature)

    def step(users: F32, items: F32, prior: F32, popularity: F32, bias: F32, mask: Bool, weight: F32) -> Gradients:
        flat, layers = np.zeros(dense.size, np.float32), dense.values.user
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is told by loss and gradients
            made = outputs(layers, users)
            found = softmax(made[-1], items, prior, popularity, bias, mask, weight)
            back = input_gradients(layers, made, found.users, dense.layout[0], flat)
            return found._replace(users=back, dense=flat)

    return step


def step_with_layers(model: ModelSettings, dense: DenseWorker, smoothing: float) -> SoftmaxStep:
    """Both sides before their layers, each row as it comes: what `step_on_tensorflow` is compared with."""
    between = step_with_user_layers(model, dense, smoothing)

    def step(users: F32, items: F32, prior: F32, popularity: F32, bias: F32, mask: Bool, weight: F32) -> Gradients:
        tower = ItemTower(dense.values.item, dense.layout[1], items, np.arange(len(items)))
        found = between(users, tower.outputs, prior, popularity, bias, mask, weight)
        tower.gradients += found.items
        rows = np.zeros_like(items)
        tower.back(rows, found.dense)
        return found._replace(items=rows)

    return step


def step_on_tensorflow(model: ModelSettings, group: int, dense: DenseWorker, smoothing: float) -> SoftmaxStep:
    """The step for any towers, all of it by TensorFlow; for groups of exactly `group`, traced here."""
    vectors, column = tf.TensorSpec([None, model.dim], tf.float32), tf.TensorSpec([None], tf.float32)
    signature = [vectors, vectors, column, column, column, tf.TensorSpec([None, group], tf.bool), column]
    parameters = dense.variable  # made here, not in the trace

    @tf.function(input_signature=signature)
    def compiled(users, items, prior, popularity, bias, mask, weight):  # type: ignore[no-untyped-def]
        flat = parameters.read_value()
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch([users, items, prior, flat])
            user_layers, item_layers = dense.towers(flat)
            user_out = finished(forward(user_layers, users), model) / model.temperature  # type: ignore[no-untyped-call]
            item_out = finished(forward(item_layers, items), model)  # type: ignore[no-untyped-call]
            u = tf.reshape(user_out, [-1, group, model.output_dim])
            v = tf.reshape(item_out, [-1, group, model.output_dim])
            logits = tf.matmul(u, v, transpose_b=True) + tf.reshape(bias, [-1, 1, group])
            logits += tf.reshape(prior, [-1, group, 1]) * tf.reshape(popularity, [-1, 1, group])
            kept = tf.reshape(mask, [-1, group, group])
            logits = tf.where(kept, logits, _NEVER)
            columns = tf.reduce_sum(tf.cast(kept, tf.float32), axis=2)
            means = tf.reduce_sum(tf.where(kept, logits, 0.0), axis=2) / tf.maximum(columns, 1.0)
            targets = (1.0 - smoothing) * tf.linalg.diag_part(logits) + smoothing * means
            losses = tf.reduce_logsumexp(logits, axis=2) - targets
            row_weight = tf.reshape(weight, [-1, group])
            loss = tf.reduce_sum(tf.where(row_weight > 0, losses * row_weight, 0.0))
        gradients = tape.gradient(loss, [users, items, prior, flat], unconnected_gradients=tf.UnconnectedGradients.ZERO)
        return (loss, *(tf.convert_to_tensor(g) for g in gradients))

    def step(users: F32, items: F32, prior: F32, popularity: F32, bias: F32, mask: Bool, weight: F32) -> Gradients:
        found = compiled(users, items, prior, popularity, bias, mask, weight)
        loss, *gradients = (t.numpy() for t in found)
        return Gradients(float(loss), *gradients)

    rows, ones = np.zeros((group, model.dim), np.float32), np.zeros(group, np.float32)
    step(rows, rows, ones, ones, ones, np.zeros((group, group), bool), ones)
    return step


def finished(x, model):  # type: ignore[no-untyped-def]
    """The TensorFlow twin of what `embedding_store.towers` does for cosine similarity."""
    return x if model.similarity == "dot" else tf.math.l2_normalize(x, axis=1, epsilon=SHORTEST)


def forward(layers, x):  # type: ignore[no-untyped-def]
    """The TensorFlow twin of `embedding_store.towers.forward`."""
    for i, (weights, bias) in enumerate(layers):
        x = tf.matmul(x, weights) + bias
        if i + 1 < len(layers):
            x = tf.nn.relu(x)
    return x
