"""One pass of sampled softmax over grouped examples: by numba and BLAS, and by TensorFlow where towers have layers.

Loss of row i over the columns j of its group, its own item at j = i (Yi et al. 2019):

    -w_i · Σ_j t_ij · log softmax_j(u_i · v_j + a_i · lp_j − log q_j)

with u, v the outputs of the towers, a_i the row's weight of log popularity lp_j, q_j the chance of item j to be a
column, t_ij smoothed labels, and columns its user has left out. TensorFlow's gradients are the oracle of the others'.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
import tensorflow as tf

from embedding_store.contract import F32, Bool
from embedding_store.model import ModelSettings
from embedding_store.towers import SHORTEST
from native.softmax import push
from trainer.dense import DenseWorker

_NEVER = np.float32(-1e30)
"""Logit of a column left out: finite, so that its gradient is an exact zero and not NaN."""


_LOGITS = 1 << 16
"""That are worked on at a time: with what belongs to them they stay in the second cache."""


class Gradients(NamedTuple):
    """Of the summed loss of n examples."""

    loss: float
    users: F32  # (n, dim) before the user's layers
    items: F32  # (n, dim) before the item's layers
    prior: F32  # (n,) ∂/∂a_i
    dense: F32  # (size,) of the flat dense parameters; that of gates is 0


class SoftmaxStep(Protocol):
    """n examples, a multiple of `group`; both sides of example i are row i."""

    def __call__(
        self, users: F32, items: F32, prior: F32, popularity: F32, bias: F32, mask: Bool, weight: F32
    ) -> Gradients:
        """users, items (n, dim); prior, popularity, bias (−ln q), weight (n,), 0 for no row; mask (n, group)."""


def step_without_layers(smoothing: float) -> SoftmaxStep:
    """The step for towers without dense layers."""
    none = np.zeros(0, np.float32)

    def step(users: F32, items: F32, prior: F32, popularity: F32, bias: F32, mask: Bool, weight: F32) -> Gradients:
        n, group = mask.shape
        d_users, d_items, d_prior = np.empty_like(users), np.empty_like(items), np.empty(n, np.float32)
        together = max(1, _LOGITS // group**2) * group
        room, loss = np.empty((min(n, together), group), np.float32), 0.0
        for start in range(0, n, together):
            rows = slice(start, min(n, start + together))
            u, v, du, dv = (x[rows].reshape(-1, group, x.shape[1]) for x in (users, items, d_users, d_items))
            logits = room[: rows.stop - start]
            grouped = logits.reshape(-1, group, group)
            np.matmul(u, v.transpose(0, 2, 1), out=grouped)
            loss += push(
                logits, mask[rows], prior[rows], popularity[rows], bias[rows], weight[rows], smoothing, d_prior[rows]
            )
            np.matmul(grouped, v, out=du)
            np.matmul(grouped.transpose(0, 2, 1), u, out=dv)
        return Gradients(loss, d_users, d_items, d_prior, none)

    return step


def step_with_layers(model: ModelSettings, group: int, dense: DenseWorker, smoothing: float) -> SoftmaxStep:
    """The step for any towers, by TensorFlow; for groups of exactly `group`, traced here and not at the first event."""
    vectors, column = tf.TensorSpec([None, model.dim], tf.float32), tf.TensorSpec([None], tf.float32)
    signature = [vectors, vectors, column, column, column, tf.TensorSpec([None, group], tf.bool), column]

    @tf.function(input_signature=signature)
    def compiled(users, items, prior, popularity, bias, mask, weight):  # type: ignore[no-untyped-def]
        flat = dense.variable
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
