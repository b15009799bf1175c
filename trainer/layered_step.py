"""The softmax step of towers with dense layers.

On a processor the layers are products by BLAS with `native.layers` between them, and the softmax between the towers'
outputs is that of towers without layers: a call of TensorFlow costs a millisecond however few examples it has, and
inside it a group's logits are read and written a dozen times. Where TensorFlow sees an accelerator, all of it is
TensorFlow's, and its gradients are the oracle of the other.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from embedding_store.contract import F32, Bool
from embedding_store.model import ModelSettings
from embedding_store.towers import SHORTEST, Layers
from native.layers import add_bias, add_columns, rectified_gradients
from trainer.dense import DenseWorker
from trainer.similarity import scaled
from trainer.softmax_step import Gradients, SoftmaxStep, step_without_layers

_BLOCK = 128
"""Rows of a product: as few as OpenBLAS multiplies without packing its operands first, a quarter faster."""

_NEVER = np.float32(-1e30)
"""Logit of a column left out: finite, so that its gradient is an exact zero and not NaN."""


def has_accelerator() -> bool:
    """Whether TensorFlow sees one."""
    return bool(tf.config.list_logical_devices("GPU"))


def step_with_layers(model: ModelSettings, dense: DenseWorker, smoothing: float) -> SoftmaxStep:
    """The step for any towers, with groups of any size. Parameters are those of `dense` when it is called."""
    softmax = scaled(step_without_layers(smoothing), cosine=model.similarity == "cosine", temperature=model.temperature)
    layouts = dense.layout

    def step(users: F32, items: F32, prior: F32, popularity: F32, bias: F32, mask: Bool, weight: F32) -> Gradients:
        flat, towers = np.zeros(dense.size, np.float32), dense.values
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is told by loss and gradients
            users_out, items_out = outputs(towers.user, users), outputs(towers.item, items)
            found = softmax(users_out[-1], items_out[-1], prior, popularity, bias, mask, weight)
            return found._replace(
                users=input_gradients(towers.user, users_out, found.users, layouts[0], flat),
                items=input_gradients(towers.item, items_out, found.items, layouts[1], flat),
                dense=flat,
            )

    return step


def outputs(layers: Layers, x: F32) -> list[F32]:
    """[x (n, dim), what each layer makes of it (n, outputs)]: `embedding_store.towers.forward`, nothing left out."""
    all_of = [x]
    for i, (weights, bias) in enumerate(layers):
        made = _product(all_of[-1], weights)
        add_bias(made, bias, i + 1 < len(layers))
        all_of.append(made)
    return all_of


def input_gradients(
    layers: Layers, all_of: list[F32], gradients: F32, layout: list[tuple[int, int, int]], flat: F32
) -> F32:
    """(n, dim) ∂/∂x from those of the last of `outputs`, (n, outputs); those of the layers are added to flat (size,).

    With y = relu(x·W + b): ∂W = xᵀ·∂, ∂b = Σ_n ∂, ∂x = ∂·Wᵀ (Rumelhart, Hinton, Williams 1986).
    """
    for i in range(len(layers) - 1, -1, -1):
        at, inputs, width = layout[i]
        bias = at + inputs * width
        if i + 1 < len(layers):
            rectified_gradients(all_of[i + 1], gradients)
        flat[at:bias].reshape(inputs, width)[:] += _outer(all_of[i], gradients)
        add_columns(gradients, flat[bias : bias + width])
        gradients = _product(gradients, np.ascontiguousarray(layers[i][0].T))
    return gradients


def _product(x: F32, weights: F32) -> F32:
    """x (n, inputs) · weights (inputs, outputs), `_BLOCK` rows at a time."""
    out = np.empty((len(x), weights.shape[1]), np.float32)
    whole = len(x) - len(x) % _BLOCK
    np.matmul(x[:whole].reshape(-1, _BLOCK, x.shape[1]), weights, out=out[:whole].reshape(-1, _BLOCK, out.shape[1]))
    np.matmul(x[whole:], weights, out=out[whole:])
    return out


def _outer(x: F32, gradients: F32) -> F32:
    """xᵀ · gradients of (n, inputs) and (n, outputs), likewise."""
    whole = len(x) - len(x) % _BLOCK
    blocks, those = (one[:whole].reshape(-1, _BLOCK, one.shape[1]) for one in (x, gradients))
    out: F32 = np.matmul(blocks.transpose(0, 2, 1), those).sum(axis=0)
    out += x[whole:].T @ gradients[whole:]
    return out


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
