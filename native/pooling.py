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
    through memory once for them all. All is indexed by element: a slice of a row is an object that is counted.
    """
    clocks, length = logits.shape
    part = vectors.shape[1] // clocks
    parts, pooled = vectors.reshape(len(vectors), clocks, part), out.reshape(len(out), clocks, part)
    places, rows = np.empty(length + 3, np.int64), np.empty(length + 3, np.int64)
    weights = np.zeros(length + 3, np.float32)
    raised = np.empty_like(logits)  # exp of each logit, once for the whole batch
    for v in range(clocks):
        top = logits[v].max()
        for k in range(length):
            raised[v, k] = np.exp(logits[v, k] - top)
    for b in range(slots.shape[0]):
        present = 0
        for k in range(length):
            places[present], rows[present] = k, slots[b, k]
            present += slots[b, k] >= 0
        for v in range(clocks):
            for k in range(length):
                shares[b, v, k] = np.float32(0.0)
            if present == 0:
                for j in range(part):
                    pooled[b, v, j] = np.float32(0.0)
                continue
            total = np.float32(0.0)
            for n in range(present):
                weights[n] = raised[v, places[n]]
                total += weights[n]
            if not total > _FAINT:  # next to those that are there others are overwhelming: among themselves they aren't
                total = _softmax(logits[v], places, present, weights)
            scale = scales[v, bucket[b]]
            for n in range(present):
                share = weights[n] / total
                shares[b, v, places[n]] = share
                weights[n] = share * scale
            if present == 1:
                w0, r0 = weights[0], rows[0]
                for j in range(part):
                    pooled[b, v, j] = w0 * parts[r0, v, j]
                continue
            for n in range(present, present + 3):
                weights[n], rows[n] = np.float32(0.0), rows[0]
            for n in range(0, present, 4):
                w0, w1, w2, w3 = weights[n], weights[n + 1], weights[n + 2], weights[n + 3]
                r0, r1, r2, r3 = rows[n], rows[n + 1], rows[n + 2], rows[n + 3]
                if n == 0:
                    for j in range(part):
                        pooled[b, v, j] = (
                            w0 * parts[r0, v, j] + w1 * parts[r1, v, j] + w2 * parts[r2, v, j] + w3 * parts[r3, v, j]
                        )
                    continue
                for j in range(part):
                    pooled[b, v, j] += (
                        w0 * parts[r0, v, j] + w1 * parts[r1, v, j] + w2 * parts[r2, v, j] + w3 * parts[r3, v, j]
                    )


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
    sources, targets = gradients.reshape(len(gradients), clocks, part), out.reshape(len(out), clocks, part)
    for b in range(slots.shape[0]):
        for k in range(slots.shape[1]):
            slot = slots[b, k]
            if slot < 0:
                continue
            for v in range(clocks):  # a row is looked for once
                weight = scales[v, bucket[b]] * shares[b, v, k]
                for j in range(part):
                    targets[slot, v, j] += weight * sources[b, v, j]


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
    parts, sources = vectors.reshape(len(vectors), clocks, part), gradients.reshape(len(gradients), clocks, part)
    places, at, dots = np.empty(length + 3, np.int64), np.empty(length + 3, np.int64), np.empty(length + 3, np.float32)
    for i in range(len(rows)):
        b, present = rows[i], 0
        for k in range(length):
            places[present], at[present] = k, slots[b, k]
            present += slots[b, k] >= 0
        if present == 0:
            continue
        for n in range(present, present + 3):
            at[n] = at[0]
        for v in range(clocks):
            mean = np.float32(0.0)
            for n in range(0, present, 4):
                r0, r1, r2, r3 = at[n], at[n + 1], at[n + 2], at[n + 3]
                d0 = d1 = d2 = d3 = np.float32(0.0)
                for j in range(part):
                    g = sources[b, v, j]
                    d0 += g * parts[r0, v, j]
                    d1 += g * parts[r1, v, j]
                    d2 += g * parts[r2, v, j]
                    d3 += g * parts[r3, v, j]
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
    dim = values.shape[1]
    for i in range(len(rows)):
        row = rows[i]
        if row >= 0:
            for j in range(dim):
                out[row, j] += values[i, j]


@njit(cache=True, nogil=True)
def gather_add(values: F32, rows: I64, out: F32) -> None:
    """out[i] += values[rows[i]]; negative rows are skipped. values (u, dim) f32, rows (n,) i64, out (n, dim) f32."""
    dim = values.shape[1]
    for i in range(len(rows)):
        row = rows[i]
        if row >= 0:
            for j in range(dim):
                out[i, j] += values[row, j]
