"""A sampled softmax over groups, between its matrix products: logits in, gradients out, row by row in one pass.

Loops are free of branches, so that they become vector instructions; a column left out is told by a select. A row is
read, raised, summed and turned into its gradient while it lies in the first cache.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from native.memory import float_of_bits, float_to_bits

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]

_SUM_ORDER = {"reassoc", "contract"}
"""The only liberties taken: sums may be vectorized. NaN and infinity still go through."""

_NEVER = np.float32(-1e30)
"""Logit of a column left out: its exponential is an exact zero."""

_LEAST = np.float32(-87.0)
"""Exponentials of what lies below are 0: the next ones would be subnormal, and slow."""
_PER_LN2 = np.float32(1.4426950408889634)
_LN2_HIGH, _LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
"""ln 2 in two parts: multiples of the first, up to 2^9 times, are exact."""
_ROUNDER = np.float32(12582912.0)
"""1.5 · 2^23: what is added to it is rounded to a whole number, which stands in the last bits of the sum."""
_ROUNDER_BITS = np.int32(0x4B400000)
_C6, _C5, _C4 = np.float32(1.9875691500e-4), np.float32(1.3981999507e-3), np.float32(8.3334519073e-3)
_C3, _C2, _C1 = np.float32(4.1665795894e-2), np.float32(1.6666665459e-1), np.float32(5.0000001201e-1)
_ONE, _ZERO = np.float32(1.0), np.float32(0.0)


@njit(cache=True, nogil=True, inline="always", fastmath={"contract"})
def exp_below(x: np.float32) -> np.float32:
    """eˣ of a float32 x ≤ 0, within 2 units in the last place; 0 below −87, NaN of NaN.

    x = n·ln 2 + r, |r| ≤ ln 2 / 2, and the polynomial of Cephes' expf for eʳ (Moshier). No branches.
    """
    kept = _LEAST if x < _LEAST else x
    shifted = kept * _PER_LN2 + _ROUNDER
    n = shifted - _ROUNDER
    r = kept - n * _LN2_HIGH
    r = r - n * _LN2_LOW
    y = _C6 * r + _C5
    y = y * r + _C4
    y = y * r + _C3
    y = y * r + _C2
    y = y * r + _C1
    y = y * (r * r) + r + _ONE
    power = float_of_bits((float_to_bits(shifted) - _ROUNDER_BITS + np.int32(127)) << np.int32(23))
    return _ZERO if x < _LEAST else y * power


@njit(cache=True, nogil=True)
def exp_all_below(values: F32) -> None:
    """values (n,) become `exp_below` of themselves."""
    for i in range(len(values)):
        values[i] = exp_below(values[i])


@njit(cache=True, nogil=True, fastmath=_SUM_ORDER)
def push(
    logits: F32, mask: Bool, prior: F32, popularity: F32, bias: F32, weight: F32, first: int, smoothing: float,
    d_prior: F32,
) -> float:  # fmt: skip
    """Turn products u_i · v_j (groups, rows, group) into ∂loss/∂logit in place; the summed loss.

    Rows are those from `first` on of each group's `group` examples, columns all of them. mask (groups, rows, group);
    prior, weight (groups, rows); popularity, bias (groups, group). Logits are l_ij = u_i · v_j + prior_i·popularity_j +
    bias_j over the mask. Row i's target is (1 − ε) on its own column plus ε evenly over the m columns of its mask
    (Szegedy et al. 2016, arXiv 1512.00567, §7): loss_i = w_i·(ln Σ exp l_ij − (1 − ε)·l_ii − ε/m·Σ_j l_ij), ∂ =
    w_i·(softmax − target). Rows of weight 0 are no rows: zeros. d_prior (groups, rows) becomes Σ_j ∂_ij·popularity_j.

    All is indexed by element: a slice of a row is an object that is counted, which costs more than a row of 64.
    """
    groups, rows, group = logits.shape
    loss = 0.0
    sharp = np.float32(1.0 - smoothing)
    for g in range(groups):
        for i in range(rows):
            w = weight[g, i]
            if w == _ZERO:
                for j in range(group):
                    logits[g, i, j] = _ZERO
                d_prior[g, i] = _ZERO
                continue
            own, slope = first + i, prior[g, i]
            top = np.int32(-2147483648)
            for j in range(group):
                value = logits[g, i, j] + slope * popularity[g, j] + bias[g, j] if mask[g, i, j] else _NEVER
                logits[g, i, j] = value
                bits = float_to_bits(value)
                ordered = bits ^ ((bits >> np.int32(31)) & np.int32(0x7FFFFFFF))  # as floats are, NaN above all
                top = ordered if ordered > top else top
            highest = float_of_bits(top ^ ((top >> np.int32(31)) & np.int32(0x7FFFFFFF)))
            own_logit = logits[g, i, own] - highest
            total, sums, columns = _ZERO, _ZERO, _ZERO
            for j in range(group):
                value = logits[g, i, j] - highest
                sums += value if mask[g, i, j] else _ZERO
                columns += _ONE if mask[g, i, j] else _ZERO
                raised = exp_below(value)
                logits[g, i, j] = raised
                total += raised
            even = np.float32(smoothing) / columns
            loss += w * (np.log(total) - sharp * own_logit - even * sums)
            scale, spread, moved = w / total, w * even, _ZERO
            for j in range(group):
                value = scale * logits[g, i, j] - (spread if mask[g, i, j] else _ZERO)
                logits[g, i, j] = value
                moved += value * popularity[g, j]
            logits[g, i, own] -= w * sharp
            d_prior[g, i] = moved - w * sharp * popularity[g, own]
    return loss


@njit(cache=True, nogil=True, fastmath={"contract"})
def losses_among(own: F32, others: F32, target: I64, columns: I64, out: F64) -> None:
    """out[i] = ln(e^own + Σ_j e^others_ij) − own − ln(1 + m): what a softmax loses, less what guessing would.

    Over the m columns that are finite and other items than row i's target. own, target, out (n,); others (n, m);
    columns (m,). What is not finite shows, but for an infinitely low score.
    """
    for i in range(len(own)):
        top, competing = own[i], 0
        for j in range(len(columns)):
            value = others[i, j]
            if columns[j] != target[i]:
                top = max(value, top)
                competing += np.isfinite(value)
        total = exp_below(own[i] - top)
        for j in range(len(columns)):
            total += exp_below(others[i, j] - top) if columns[j] != target[i] else _ZERO
        out[i] = np.log(total) + (top - own[i]) - np.log1p(np.float64(competing))
