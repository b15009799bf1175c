"""Histories to vectors: weighted means by several clocks, and their gradients.

A row of `dim` values is cut evenly into one part per clock. With slots (batch, length), the row of each place of a
history, newest first, -1 where there is none, and logits p (clocks, length), scales s (clocks, buckets):

    share[b, v, k] = softmax_k p[v, k]  over the k with a slot        out[b, part v] = s[v, bucket_b] Σ_k share · row
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

F32 = npt.NDArray[np.float32]
I64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]

_SUM_ORDER = {"reassoc", "contract"}
"""The only liberties taken: sums may be vectorized. NaN and infinity still go through."""


@njit(cache=True, nogil=True, fastmath=_SUM_ORDER)
def pool_histories(vectors: F32, slots: I64, logits: F32, scales: F32, bucket: I64, shares: F32, out: F32) -> None:
    """The formula above; zeros without any slot. A missing item keeps its place: the others' logits are theirs.

    vectors (u, dim) f32, slots (batch, length) i64, logits (clocks, length) f32, scales (clocks, buckets) f32, bucket
    (batch,) i64. Fills shares (batch, clocks, length) and out (batch, dim). Four rows are added at a time: a sum goes
    through memory once for them all.
    """
    clocks, length = logits.shape
    part = vectors.shape[1] // clocks
    places = np.empty(length + 3, np.int64)
    weights = np.zeros(length + 3, np.float32)
    for b in range(slots.shape[0]):
        present = 0
        for k in range(length):
            if slots[b, k] >= 0:
                places[present] = k
                present += 1
        for v in range(clocks):
            target = out[b, v * part : (v + 1) * part]
            target[:] = np.float32(0.0)
            shares[b, v, :] = np.float32(0.0)
            if present == 0:
                continue
            _softmax(logits[v], places, present, weights)
            scale = scales[v, bucket[b]]
            for n in range(present):
                shares[b, v, places[n]] = weights[n]
                weights[n] *= scale
            weights[present : present + 3] = np.float32(0.0)
            places[present : present + 3] = places[0]
            for n in range(0, present, 4):
                w0, w1, w2, w3 = weights[n], weights[n + 1], weights[n + 2], weights[n + 3]
                r0 = vectors[slots[b, places[n]], v * part : (v + 1) * part]
                r1 = vectors[slots[b, places[n + 1]], v * part : (v + 1) * part]
                r2 = vectors[slots[b, places[n + 2]], v * part : (v + 1) * part]
                r3 = vectors[slots[b, places[n + 3]], v * part : (v + 1) * part]
                for j in range(part):
                    target[j] += w0 * r0[j] + w1 * r1[j] + w2 * r2[j] + w3 * r3[j]


@njit(cache=True, inline="always")
def _softmax(logits: F32, places: I64, n: int, out: F32) -> None:
    """out[:n] = softmax of logits[places[:n]]."""
    top = logits[places[0]]
    for k in range(1, n):
        top = max(top, logits[places[k]])
    total = np.float32(0.0)
    for k in range(n):
        out[k] = np.exp(logits[places[k]] - top)
        total += out[k]
    for k in range(n):
        out[k] /= total


@njit(cache=True, nogil=True)
def pool_gradients(gradients: F32, slots: I64, shares: F32, scales: F32, bucket: I64, out: F32) -> None:
    """Add to out (u, dim) the gradient of `pool_histories` with respect to vectors, from its output's (batch, dim)."""
    clocks = shares.shape[1]
    part = gradients.shape[1] // clocks
    for b in range(slots.shape[0]):
        for v in range(clocks):
            scale = scales[v, bucket[b]]
            source = gradients[b, v * part : (v + 1) * part]
            for k in range(slots.shape[1]):
                if slots[b, k] >= 0:
                    weight = scale * shares[b, v, k]
                    row = out[slots[b, k], v * part : (v + 1) * part]
                    for j in range(part):
                        row[j] += weight * source[j]


@njit(cache=True, nogil=True, fastmath=_SUM_ORDER)
def gate_gradients(
    gradients: F32, vectors: F32, slots: I64, shares: F32, scales: F32, bucket: I64, d_logits: F32, d_scales: F32
) -> None:
    """Add the gradient of `pool_histories` with respect to logits and scales to d_logits and d_scales, shaped as they.

    ∂/∂p_k = s·share_k·(g·row_k − Σ_l share_l g·row_l), ∂/∂s = Σ_k share_k g·row_k.
    """
    clocks, length = d_logits.shape
    part = vectors.shape[1] // clocks
    dots = np.empty(length, np.float32)
    for b in range(slots.shape[0]):
        for v in range(clocks):
            mean = np.float32(0.0)
            for k in range(length):
                dot = np.float32(0.0)
                if slots[b, k] >= 0:
                    row = vectors[slots[b, k], v * part : (v + 1) * part]
                    source = gradients[b, v * part : (v + 1) * part]
                    for j in range(part):
                        dot += source[j] * row[j]
                dots[k] = dot
                mean += shares[b, v, k] * dot
            scale = scales[v, bucket[b]]
            d_scales[v, bucket[b]] += mean
            for k in range(length):
                d_logits[v, k] += scale * shares[b, v, k] * (dots[k] - mean)


@njit(cache=True, nogil=True)
def add_rows(values: F32, rows: I64, out: F32) -> None:
    """out[rows[i]] += values[i]; repeats add up, negative rows are skipped.

    values (n, dim) f32, rows (n,) i64, out (u, dim) f32.
    """
    for i in range(len(rows)):
        if rows[i] >= 0:
            source = values[i]
            target = out[rows[i]]
            for j in range(values.shape[1]):
                target[j] += source[j]


@njit(cache=True, nogil=True)
def gather_add(values: F32, rows: I64, out: F32) -> None:
    """out[i] += values[rows[i]]; negative rows are skipped. values (u, dim) f32, rows (n,) i64, out (n, dim) f32."""
    for i in range(len(rows)):
        if rows[i] >= 0:
            source = values[rows[i]]
            target = out[i]
            for j in range(values.shape[1]):
                target[j] += source[j]
