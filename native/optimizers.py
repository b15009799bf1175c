"""Optimizer steps in place on rows; the formulas are those of `embedding_store.optimizers`.

Each takes vectors (n, dim) and gradients (n, dim), gradients possibly read-only. Operations are in a fixed order
without contraction, so that a C twin gives the same bits. Not finite in, not finite out. Rows with a gradient of zeros
stay as they are, state included.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit, types

from native.statistics import power

F32 = npt.NDArray[np.float32]

_ROWS = types.float32[:, ::1]
_GRADIENTS = types.Array(types.float32, 2, "C", readonly=True)


@njit(types.void(_ROWS, _GRADIENTS), cache=True, nogil=True)
def add(vectors: F32, gradients: F32) -> None:
    """w ← w + g."""
    for i in range(vectors.shape[0]):
        for j in range(vectors.shape[1]):
            vectors[i, j] += gradients[i, j]


@njit(types.void(_ROWS, _GRADIENTS, types.float32), cache=True, nogil=True)
def sgd(vectors: F32, gradients: F32, learning_rate: np.float32) -> None:
    """w ← w − η·g."""
    for i in range(vectors.shape[0]):
        for j in range(vectors.shape[1]):
            vectors[i, j] -= learning_rate * gradients[i, j]


@njit(types.void(_ROWS, _ROWS, _GRADIENTS, types.float32, types.float32), cache=True, nogil=True)
def adagrad(vectors: F32, state: F32, gradients: F32, learning_rate: np.float32, epsilon: np.float32) -> None:
    """s ← s + g²; w ← w − η·g/(√s + ε). state (n, dim)."""
    for i in range(vectors.shape[0]):
        for j in range(vectors.shape[1]):
            g = gradients[i, j]
            s = state[i, j] + g * g
            state[i, j] = s
            vectors[i, j] -= learning_rate * g / (np.sqrt(s) + epsilon)


@njit(types.void(_ROWS, _ROWS, _GRADIENTS, types.float32, types.float32), cache=True, nogil=True)
def rowwise_adagrad(vectors: F32, state: F32, gradients: F32, learning_rate: np.float32, epsilon: np.float32) -> None:
    """s ← s + mean(g²); w ← w − η·g/(√s + ε). state (n, 1); the mean is taken in float64, in order."""
    dim = vectors.shape[1]
    for i in range(vectors.shape[0]):
        total = 0.0
        for j in range(dim):
            g64 = np.float64(gradients[i, j])
            total += g64 * g64
        s = np.float32(np.float64(state[i, 0]) + total / dim)
        state[i, 0] = s
        divisor = np.sqrt(s) + epsilon
        for j in range(dim):
            vectors[i, j] -= learning_rate * gradients[i, j] / divisor


@njit(
    types.void(_ROWS, _ROWS, _GRADIENTS, types.float64, types.float64, types.float64, types.float64),
    cache=True,
    nogil=True,
)
def adam(
    vectors: F32, state: F32, gradients: F32, learning_rate: float, beta_1: float, beta_2: float, epsilon: float
) -> None:
    """k ← k + 1; m ← β1·m + (1 − β1)·g; v ← β2·v + (1 − β2)·g²; w ← w − η·(m/(1 − β1^k))/(√(v/(1 − β2^k)) + ε).

    On rows whose gradient is not all zero. state (n, 2·dim + 1): m, v, k. float64 inside, each value rounded once.
    """
    dim = vectors.shape[1]
    for i in range(vectors.shape[0]):
        touched = False
        for j in range(dim):
            touched |= gradients[i, j] != 0.0
        if not touched:
            continue
        k = int(state[i, 2 * dim]) + 1
        state[i, 2 * dim] = np.float32(k)
        left_1, left_2 = 1.0 - power(beta_1, k), 1.0 - power(beta_2, k)
        for j in range(dim):
            g = np.float64(gradients[i, j])
            m = beta_1 * np.float64(state[i, j]) + (1.0 - beta_1) * g
            v = beta_2 * np.float64(state[i, dim + j]) + (1.0 - beta_2) * g * g
            state[i, j] = np.float32(m)
            state[i, dim + j] = np.float32(v)
            step = learning_rate * (m / left_1) / (np.sqrt(v / left_2) + epsilon)
            vectors[i, j] = np.float32(np.float64(vectors[i, j]) - step)


@njit(types.void(_ROWS, _GRADIENTS, types.float32), cache=True, nogil=True)
def add_penalty(gradients: F32, vectors: F32, penalty: np.float32) -> None:
    """g ← g + λ·w on the rows that have a gradient: the penalty λ/2·‖w‖² of each row that a loss is about."""
    for i in range(vectors.shape[0]):
        touched = False
        for j in range(vectors.shape[1]):
            if gradients[i, j] != 0.0:
                touched = True
                break
        if touched:
            for j in range(vectors.shape[1]):
                gradients[i, j] += penalty * vectors[i, j]


@njit(types.void(_GRADIENTS, types.float64, _ROWS), cache=True, nogil=True)
def clip(gradients: F32, longest: float, out: F32) -> None:
    """out = g·min(1, longest/‖g‖₂), row by row (Pascanu, Mikolov, Bengio 2013, arXiv 1211.5063, algorithm 1).

    The norm is taken in float64, in order: it neither overflows nor vanishes.
    """
    for i in range(gradients.shape[0]):
        total = 0.0
        for j in range(gradients.shape[1]):
            g = np.float64(gradients[i, j])
            total += g * g
        scale = 1.0
        if total > longest * longest:
            scale = longest / np.sqrt(total)
        for j in range(gradients.shape[1]):
            out[i, j] = np.float32(np.float64(gradients[i, j]) * scale)
