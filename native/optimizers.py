"""Optimizer steps in place on rows, float32 throughout; the formulas are those of `embedding_store.spec`.

Each takes vectors (n, dim) and gradients (n, dim), gradients possibly read-only. Operations are in a fixed order
without contraction, so that a C twin gives the same bits.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit, types

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
    """s ← s + g²; w ← w − η·g/(√s + ε). state (n, dim). Not finite in, not finite out."""
    for i in range(vectors.shape[0]):
        for j in range(vectors.shape[1]):
            g = gradients[i, j]
            s = state[i, j] + g * g
            state[i, j] = s
            vectors[i, j] -= learning_rate * g / (np.sqrt(s) + epsilon)
