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

_FAINT = np.float32(1e-20)
"""A sum of exponentials below which they are made anew, of logits among themselves."""


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
    raised = np.empty_like(logits)  # exp of each logit, once for the whole batch
    for v in range(clocks):
        top = logits[v].max()
        for k in range(length):
            raised[v, k] = np.exp(logits[v, k] - top)
    for b in range(slots.shape[0]):
        present = 0
        for k in range(length):
            places[present] = k
            present += slots[b, k] >= 0
        out[b, :] = np.float32(0.0)
        shares[b, :, :] = np.float32(0.0)
        if present == 0:
            continue
        places[present : present + 3] = places[0]
        for v in range(clocks):
            total = np.float32(0.0)
            for n in range(present):
                weights[n] = raised[v, places[n]]
                total += weights[n]
            if not total > _FAINT:  # next to those that are there others are overwhelming: among themselves they aren't
                total = _softmax(logits[v], places, present, weights)
            scale, target = scales[v, bucket[b]], out[b, v * part : (v + 1) * part]
            for n in range(present):
                share = weights[n] / total
                shares[b, v, places[n]] = share
                weights[n] = share * scale
            weights[present : present + 3] = np.float32(0.0)
            for n in range(0, present, 4):
                w0, w1, w2, w3 = weights[n], weights[n + 1], weights[n + 2], weights[n + 3]
                r0 = vectors[slots[b, places[n]], v * part : (v + 1) * part]
                r1 = vectors[slots[b, places[n + 1]], v * part : (v + 1) * part]
                r2 = vectors[slots[b, places[n + 2]], v * part : (v + 1) * part]
                r3 = vectors[slots[b, places[n + 3]], v * part : (v + 1) * part]
                for j in range(part):
                    target[j] += w0 * r0[j] + w1 * r1[j] + w2 * r2[j] + w3 * r3[j]


@njit(cache=True, inline="always")
def _softmax(logits: F32, places: I64, n: int, out: F32) -> np.float32:
    """out[:n] becomes proportional to the softmax of logits[places[:n]]; the sum of it."""
    top = logits[places[0]]
    for k in range(1, n):
        top = max(top, logits[places[k]])
    total = np.float32(0.0)
    for k in range(n):
        out[k] = np.exp(logits[places[k]] - top)
        total += out[k]
    return total


@njit(cache=True, nogil=True)
def pool_gradients(gradients: F32, slots: I64, shares: F32, scales: F32, bucket: I64, out: F32) -> None:
    """Add to out (u, dim) the gradient of `pool_histories` with respect to vectors, from its output's (batch, dim)."""
    clocks = shares.shape[1]
    part = gradients.shape[1] // clocks
    for b in range(slots.shape[0]):
        for k in range(slots.shape[1]):
            slot = slots[b, k]
            if slot < 0:
                continue
            for v in range(clocks):  # a row is looked for once
                weight = scales[v, bucket[b]] * shares[b, v, k]
                source, row = gradients[b, v * part : (v + 1) * part], out[slot, v * part : (v + 1) * part]
                for j in range(part):
                    row[j] += weight * source[j]


@njit(cache=True, nogil=True, fastmath=_SUM_ORDER)
def gate_gradients(
    rows: I64, gradients: F32, vectors: F32, slots: I64, shares: F32, scales: F32, bucket: I64, d_logits: F32,
    d_scales: F32,
) -> None:  # fmt: skip
    """Add the gradient of `pool_histories` with respect to logits and scales to d_logits and d_scales, shaped as they.

    Of the batch's elements `rows` (n,) alone. ∂/∂p_k = s·share_k·(g·row_k − Σ_l share_l g·row_l),
    ∂/∂s = Σ_k share_k g·row_k. Four products are made at a time: they share the gradient's loads.
    """
    clocks, length = d_logits.shape
    part = vectors.shape[1] // clocks
    places, dots = np.empty(length + 3, np.int64), np.empty(length + 3, np.float32)
    for b in rows:
        present = 0
        for k in range(length):
            places[present] = k
            present += slots[b, k] >= 0
        if present == 0:
            continue
        places[present : present + 3] = places[0]
        for v in range(clocks):
            source, mean = gradients[b, v * part : (v + 1) * part], np.float32(0.0)
            for n in range(0, present, 4):
                r0 = vectors[slots[b, places[n]], v * part : (v + 1) * part]
                r1 = vectors[slots[b, places[n + 1]], v * part : (v + 1) * part]
                r2 = vectors[slots[b, places[n + 2]], v * part : (v + 1) * part]
                r3 = vectors[slots[b, places[n + 3]], v * part : (v + 1) * part]
                d0 = d1 = d2 = d3 = np.float32(0.0)
                for j in range(part):
                    d0 += source[j] * r0[j]
                    d1 += source[j] * r1[j]
                    d2 += source[j] * r2[j]
                    d3 += source[j] * r3[j]
                dots[n], dots[n + 1], dots[n + 2], dots[n + 3] = d0, d1, d2, d3
            for n in range(present):
                mean += shares[b, v, places[n]] * dots[n]
            scale = scales[v, bucket[b]]
            d_scales[v, bucket[b]] += mean
            for n in range(present):
                d_logits[v, places[n]] += scale * shares[b, v, places[n]] * (dots[n] - mean)


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
