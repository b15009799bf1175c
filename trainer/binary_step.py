"""One pass of binary cross-entropy over label events.

Loss of event i with label y_i (1 positive, 0 explicit negative), u, v the outputs of the towers, a_i the user's weight
of log popularity lp_i:

    w_i · (log(1 + e^s_i) − y_i·s_i),   s_i = u_i · v_i + a_i·lp_i + b

b makes the mean of what is predicted that of what is observed. It moves no ranking, so it is in no table: a worker fits
it to its first labels by Newton's method and lets it follow, a damped step a micro-batch.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from embedding_store.contract import F32
from embedding_store.model import ModelSettings
from embedding_store.towers import SHORTEST, Layers
from trainer.dense import DenseWorker
from trainer.similarity import through_unit
from trainer.softmax_step import Gradients

F64 = npt.NDArray[np.float64]

_DAMPING = 10.0
"""Events' worth of curvature that a micro-batch has to outweigh."""


class BinaryStep:
    """n examples; both sides of example i are row i."""

    def __init__(self, model: ModelSettings, dense: DenseWorker) -> None:
        self._model, self._dense = model, dense
        self.intercept: float | None = None  # b; None before the first labels

    def __call__(
        self, users: F32, items: F32, prior: F32, popularity: F32, label: F32, weight: F32, *, fit: bool
    ) -> Gradients:
        """users, items (n, dim) before their layers; prior, popularity, label (0 or 1), weight (n,), 0 for no row.

        fit: let b follow, before the gradients are taken.
        """
        towers = self._dense.values
        user, item = _Tower(self._model, towers.user, users), _Tower(self._model, towers.item, items)
        cold = np.float32(1.0 / self._model.temperature)
        scores = np.einsum("ij,ij->i", user.out, item.out) * cold + prior * popularity
        if fit:
            self._fit(scores, label, weight)
        logits = scores.astype(np.float64) + (self.intercept or 0.0)
        live = weight > 0
        losses = np.where(live, weight * (np.logaddexp(0.0, logits) - label * logits), 0.0)
        push = np.where(live, weight * (sigmoid(logits) - label), 0.0).astype(np.float32)
        flat = np.zeros(self._dense.size, np.float32)
        user_at, item_at = self._dense.layout
        d_users = user.back(item.out * (push * cold)[:, None], user_at, flat)
        d_items = item.back(user.out * (push * cold)[:, None], item_at, flat)
        return Gradients(float(losses.sum()), d_users, d_items, push * popularity, flat)

    def _fit(self, scores: F32, label: F32, weight: F32) -> None:
        first = self.intercept is None
        b = self.intercept or 0.0
        for _ in range(20 if first else 1):
            p = sigmoid(scores + b)
            b += float((weight * (label - p)).sum() / ((weight * p * (1.0 - p)).sum() + _DAMPING))
        if np.isfinite(b):  # else the loss is not either, and the step is refused
            self.intercept = b


def sigmoid(x: F32 | F64) -> F64:
    """1/(1 + e^−x), without overflow."""
    half: F64 = 0.5 * (1.0 + np.tanh(0.5 * x.astype(np.float64)))
    return half


class _Tower:
    """Forward with what the way back needs."""

    def __init__(self, model: ModelSettings, layers: Layers, x: F32) -> None:
        self._layers, self._kept = layers, [x]
        for i, (weights, bias) in enumerate(layers):
            x = x @ weights + bias
            if i + 1 < len(layers):
                x = np.maximum(x, np.float32(0.0))
            self._kept.append(x)
        self._length: F32 | None = None
        if model.similarity == "cosine":
            squares = np.einsum("ij,ij->i", x, x)
            self._length = np.sqrt(np.maximum(squares, np.float32(SHORTEST)))[:, None]
            x = x / self._length
        self.out = x  # (n, output_dim) without the temperature

    def back(self, gradient: F32, at: list[tuple[int, int, int]], flat: F32) -> F32:
        """(n, dim) gradient of the input; those of weights and biases go to their places `at` in flat."""
        if self._length is not None:
            gradient = through_unit(gradient, self.out, self._length)
        for i in range(len(self._layers) - 1, -1, -1):
            if i + 1 < len(self._layers):
                gradient = gradient * (self._kept[i + 1] > 0)
            start, inputs, outputs = at[i]
            bias = start + inputs * outputs
            flat[start:bias] = (self._kept[i].T @ gradient).reshape(-1)
            flat[bias : bias + outputs] = gradient.sum(axis=0)
            gradient = gradient @ self._layers[i][0].T
        return gradient
