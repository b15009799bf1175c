"""One step of learning: sampled softmax over grouped examples in TensorFlow, on rows that were pooled before it.

Loss of row i over the columns j of its group, its own item at j = i (Yi et al. 2019):
    -w_i · log softmax_j(u_i · v_j − log q_j),   q_j = f · (1 / B_j) + (1 − f) · (count_j / clock)
with f the share of fresh examples, B the store's moving average of gaps, and columns its user has already left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from embedding_store.contract import F32, I64, U64, Bool, Rows
from embedding_store.model import ModelSettings
from embedding_store.validation import MAX_GRADIENT
from native.pooling import add_rows, pool_gradients, pool_histories
from native.softmax_masks import own_columns
from trainer.dense import DenseWorker
from trainer.examples import Examples

_NEVER = np.float32(-1e30)
"""Logit of a column left out: finite, so that its gradient is an exact zero and not NaN."""

_LARGEST = MAX_GRADIENT / 1024
"""Largest gradient of a step: the sum of as many steps as a flush may hold is still one that the store takes."""


@dataclass(frozen=True, slots=True)
class Step:
    """Row gradients of one step, summed per key, and its mean loss (0 rows: 0)."""

    item_keys: U64
    item_gradients: F32
    user_keys: U64
    user_gradients: F32
    loss: float
    rows: int
    finite: bool  # and no larger than the store takes

    def of(self, side: str) -> tuple[U64, F32]:
        """(keys, gradients) of side `item` or `user`."""
        return (self.item_keys, self.item_gradients) if side == "item" else (self.user_keys, self.user_gradients)


class Learner:
    """Holds the compiled step. Stateless but for the dense parameters of its worker."""

    def __init__(self, model: ModelSettings, group: int, dense: DenseWorker, rng: np.random.Generator) -> None:
        self._model, self._group, self._dense, self._rng = model, group, dense, rng
        self._step = _compile_step(model, group, dense)
        rows, ones = np.zeros((group, model.dim), np.float32), np.zeros(group, np.float32)
        # traced here and not at the first event, which would wait a second for it
        self._step(rows, rows, ones, np.zeros((group, group), bool), ones)

    def learn(self, examples: Examples, clock: int, *, again: bool = False) -> Step:
        """Gradients of one pass over the examples. clock: events before these.

        Dense parameters move locally; not `again` for events that have moved them already.
        """
        order = self._order(len(examples.target))
        live = order >= 0
        rows = order[live]
        recent = examples.recent[order]
        recent[~live] = -1
        target = examples.target[order]
        is_row = examples.is_row[order] & live

        pooled = np.zeros((len(order), self._model.dim), np.float32)
        pool_histories(examples.items.vectors, recent, self._model.recency, pooled)
        if examples.users is not None:
            pooled[live] += examples.users.vectors[examples.user[rows]]
        mask = self._mask(examples, order, live)
        bias = -np.log(_sampling_share(examples, clock))[target].astype(np.float32)
        weight = np.where(is_row, examples.weight[order], np.float32(0.0))
        loss, pooled_gradients, target_gradients, dense_gradients = (
            t.numpy() for t in self._step(pooled, examples.items.vectors[target], bias, mask, weight)
        )
        item_gradients = np.zeros_like(examples.items.vectors)
        add_rows(target_gradients, np.where(live, target, -1), item_gradients)
        pool_gradients(pooled_gradients, recent, self._model.recency, item_gradients)
        user_gradients = np.zeros((len(examples.user_keys), self._model.dim), np.float32)
        if examples.users is not None:
            add_rows(pooled_gradients[live], examples.user[rows], user_gradients)
        gradients = (item_gradients, user_gradients, dense_gradients, loss)
        finite = all(bool((np.abs(g) <= _LARGEST).all()) for g in gradients)  # NaN compares as False
        if finite and not again:
            self._dense.step(dense_gradients, int(is_row.sum()))
        return Step(
            item_keys=examples.item_keys,
            item_gradients=item_gradients,
            user_keys=examples.user_keys,
            user_gradients=user_gradients,
            loss=float(loss) / max(1.0, float(weight.sum())),
            rows=int(is_row.sum()),
            finite=finite,
        )

    def _order(self, n: int) -> I64:
        """A random order of the examples, padded with -1 to whole groups: groups mix fresh events and replays."""
        order = np.full(-(-n // self._group) * self._group, -1, np.int64)
        order[:n] = self._rng.permutation(n)
        return order

    def _mask(self, examples: Examples, order: I64, live: Bool) -> Bool:
        counts = np.where(live, np.diff(examples.seen_offsets)[order], 0)
        offsets = np.zeros(len(order) + 1, np.int64)
        np.cumsum(counts, out=offsets[1:])
        shift = np.repeat(examples.seen_offsets[:-1][order] - offsets[:-1], counts)
        seen = examples.seen[np.arange(offsets[-1]) + shift]
        mask = np.empty((len(order), self._group), bool)
        stamps = np.full(len(examples.item_keys), -1, np.int64)
        own_columns(self._group, examples.target[order], live & examples.is_column[order], offsets, seen, mask, stamps)
        return mask


def _sampling_share(examples: Examples, clock: int) -> npt.NDArray[np.float64]:
    """(u,) chance of each item to be a column: by its gaps for fresh ones, by its running frequency for replays."""
    rows: Rows = examples.items
    fresh = examples.fresh / max(1, len(examples.target))
    gap = np.where(rows.gap > 0, rows.gap, max(1.0, float(clock)))
    often = np.maximum(rows.count, 1) / max(1.0, float(clock))
    return fresh / np.maximum(gap, 1.0) + (1.0 - fresh) * np.minimum(often, 1.0)


def _compile_step(model: ModelSettings, group: int, dense: DenseWorker):  # type: ignore[no-untyped-def]
    signature = [
        tf.TensorSpec([None, model.dim], tf.float32),
        tf.TensorSpec([None, model.dim], tf.float32),
        tf.TensorSpec([None], tf.float32),
        tf.TensorSpec([None, group], tf.bool),
        tf.TensorSpec([None], tf.float32),
    ]

    @tf.function(input_signature=signature)
    def step(pooled, items, bias, mask, weight):  # type: ignore[no-untyped-def]
        flat = dense.variable
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch([pooled, items, flat])
            user_out, item_out = pooled, items
            if model.dense_layers:
                user_layers, item_layers = dense.towers(flat)
                user_out, item_out = _forward(user_layers, pooled), _forward(item_layers, items)  # type: ignore[no-untyped-call]
            u = tf.reshape(user_out, [-1, group, model.output_dim])
            v = tf.reshape(item_out, [-1, group, model.output_dim])
            logits = tf.matmul(u, v, transpose_b=True) + tf.reshape(bias, [-1, 1, group])
            logits = tf.where(tf.reshape(mask, [-1, group, group]), logits, _NEVER)
            own = tf.linalg.diag_part(logits)
            losses = tf.reduce_logsumexp(logits, axis=2) - own
            row_weight = tf.reshape(weight, [-1, group])
            loss = tf.reduce_sum(tf.where(row_weight > 0, losses * row_weight, 0.0))
        gradients = tape.gradient(loss, [pooled, items, flat], unconnected_gradients=tf.UnconnectedGradients.ZERO)
        return (loss, *(tf.convert_to_tensor(g) for g in gradients))

    return step


def _forward(layers, x):  # type: ignore[no-untyped-def]
    """The TensorFlow twin of `embedding_store.towers.forward`."""
    for i, (weights, bias) in enumerate(layers):
        x = tf.matmul(x, weights) + bias
        if i + 1 < len(layers):
            x = tf.nn.relu(x)
    return x
