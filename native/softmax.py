"""The parts of a sampled softmax around matrix products, a vectorized exp and row maxima: logits in, gradients out.

Loops are free of branches, so that they become vector instructions; a column left out is told by a select.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]

_SUM_ORDER = {"reassoc", "contract"}
"""The only liberties taken: sums may be vectorized. NaN and infinity still go through."""

_NEVER = np.float32(-1e30)
"""Logit of a column left out: its exponential is an exact zero."""


@njit(cache=True, nogil=True, fastmath=_SUM_ORDER)
def complete(logits: F32, prior: F32, popularity: F32, bias: F32, mask: Bool) -> None:
    """logits[i, j] += prior[i]·popularity[j] + bias[j] over the mask, a number below all others elsewhere.

    logits, mask (rows, columns); prior (rows,), popularity, bias (columns,).
    """
    rows, columns = logits.shape
    for i in range(rows):
        row, kept, weight = logits[i], mask[i], prior[i]
        for j in range(columns):
            row[j] = row[j] + weight * popularity[j] + bias[j] if kept[j] else _NEVER


@njit(cache=True, nogil=True, fastmath=_SUM_ORDER)
def lower(logits: F32, tops: F32, mask: Bool, own: F32, sums: F32, counts: F32) -> None:
    """logits[i, j] −= tops[i], the row's largest. Fills own (rows,): row i's logit of column i; over the mask sums
    (rows,) of logits and counts (rows,) of columns."""
    rows, columns = logits.shape
    for i in range(rows):
        row, kept, top = logits[i], mask[i], tops[i]
        total, count = np.float32(0.0), np.float32(0.0)
        for j in range(columns):
            value = row[j] - top
            row[j] = value
            total += value if kept[j] else np.float32(0.0)
            count += np.float32(1.0) if kept[j] else np.float32(0.0)
        own[i], sums[i], counts[i] = row[i], total, count


@njit(cache=True, nogil=True, fastmath=_SUM_ORDER)
def push(
    exponentials: F32, mask: Bool, popularity: F32, weight: F32, smoothing: float, own: F32, sums: F32, counts: F32,
    d_prior: F32,
) -> float:  # fmt: skip
    """Turn exponentials of `lower`'s logits (rows, columns) into ∂loss/∂logit in place; the loss.

    Row i's target is (1 − ε) on column i plus ε evenly over the m columns of its mask (Szegedy et al. 2016, arXiv
    1512.00567, §7): loss_i = w_i·(ln Σ exp − (1 − ε)·l_i − ε/m·Σ_j l_j), ∂ = w_i·(softmax − target). Rows of weight 0
    are no rows. d_prior (rows,) becomes Σ_j ∂_j·popularity_j.
    """
    rows, columns = exponentials.shape
    loss = 0.0
    for i in range(rows):
        row, kept = exponentials[i], mask[i]
        if weight[i] == 0.0:
            row[:] = np.float32(0.0)
            d_prior[i] = np.float32(0.0)
            continue
        total = np.float32(0.0)
        for j in range(columns):
            total += row[j]
        even, sharp = np.float32(smoothing) / counts[i], np.float32(1.0 - smoothing)
        loss += weight[i] * (np.log(total) - sharp * own[i] - even * sums[i])
        scale, spread, prior = weight[i] / total, weight[i] * even, np.float32(0.0)
        for j in range(columns):
            value = scale * row[j] - (spread if kept[j] else np.float32(0.0))
            row[j] = value
            prior += value * popularity[j]
        row[i] -= weight[i] * sharp
        d_prior[i] = prior - weight[i] * sharp * popularity[i]
    return loss
