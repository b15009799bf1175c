"""Recency-weighted means of item vectors, and their gradient."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

F32 = npt.NDArray[np.float32]
I64 = npt.NDArray[np.int64]


@njit(cache=True, nogil=True)
def pool_histories(vectors: F32, slots: I64, recency: float, out: F32) -> None:
    """out[b] = Σ_k w_k·vectors[slots[b, k]] / Σ_k w_k, w_k = recency^k, over the k with a slot; zeros without any.

    vectors (u, dim) f32, slots (batch, length) i64 newest first with -1 for a missing item, out (batch, dim) f32. A
    missing item keeps its place: the weights of the others are what they were when it was there.
    """
    dim = vectors.shape[1]
    for b in range(slots.shape[0]):
        for j in range(dim):
            out[b, j] = 0.0
        total = _weight_sum(slots, b, recency)
        if total == 0.0:
            continue
        w = 1.0
        for k in range(slots.shape[1]):
            if slots[b, k] >= 0:
                share = np.float32(w / total)
                row = slots[b, k]
                for j in range(dim):
                    out[b, j] += share * vectors[row, j]
            w *= recency


@njit(cache=True, nogil=True)
def pool_gradients(gradients: F32, slots: I64, recency: float, out: F32) -> None:
    """Add to out (u, dim) the gradient of `pool_histories` with respect to vectors, from its output's (batch, dim)."""
    dim = gradients.shape[1]
    for b in range(slots.shape[0]):
        total = _weight_sum(slots, b, recency)
        if total == 0.0:
            continue
        w = 1.0
        for k in range(slots.shape[1]):
            if slots[b, k] >= 0:
                share = np.float32(w / total)
                row = slots[b, k]
                for j in range(dim):
                    out[row, j] += share * gradients[b, j]
            w *= recency


@njit(cache=True, inline="always")
def _weight_sum(slots: I64, b: int, recency: float) -> float:
    total = 0.0
    w = 1.0
    for k in range(slots.shape[1]):
        if slots[b, k] >= 0:
            total += w
        w *= recency
    return total


@njit(cache=True, nogil=True)
def add_rows(values: F32, rows: I64, out: F32) -> None:
    """out[rows[i]] += values[i]; repeats add up, negative rows are skipped.

    values (n, dim) f32, rows (n,) i64, out (u, dim) f32.
    """
    for i in range(len(rows)):
        if rows[i] >= 0:
            for j in range(values.shape[1]):
                out[rows[i], j] += values[i, j]
