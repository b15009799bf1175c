"""The gradient of what transitions are worth."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

F32 = npt.NDArray[np.float32]
I64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]


_NEVER = np.float32(-1e30)
"""Score of a column left out: its exponential is an exact zero."""


@njit(cache=True, nogil=True)
def add_prior(scores: F32, prior: F32, popularity: F32, mask: Bool) -> None:
    """scores[i, j] += prior[i]·popularity[j] over the mask, a number below all others elsewhere.

    scores, mask (rows, columns); prior (rows,), popularity (columns,).
    """
    rows, columns = scores.shape
    for i in range(rows):
        row, kept, weight = scores[i], mask[i], prior[i]
        for j in range(columns):
            row[j] = row[j] + weight * popularity[j] if kept[j] else _NEVER


@njit(cache=True, nogil=True)
def transition_gradients(
    scores: F32, mask: Bool, bias: F32, own: I64, column: I64, starts: I64, stops: I64, items: I64, values: F32,
    worth: F32, trust: F32, weight: F32, scratch: F32, out: F32,
) -> None:  # fmt: skip
    """out[:, i] = weight_i · ∂/∂(g_i, t_i) (ln Σ_j exp l_ij − l_i,own_i), l_ij = t_i·(scores_ij + g_i·f_ij) + bias_j.

    scores, mask (n, m), of which the own columns (n,) are unmasked, sums are over the mask; bias, column (m,) item
    number of each column; f_ij the value of item column[j] among items and values[starts[i]:stops[i]], 0 where it isn't
    there; worth g, trust t, weight (n,). scratch: zeros for every item number, and left so. Fills out (2, n).
    """
    for i in range(scores.shape[0]):
        g, t = worth[i], trust[i]
        for e in range(starts[i], stops[i]):
            scratch[items[e]] = values[e]
        top = -np.float32(np.inf)
        for j in range(scores.shape[1]):
            if mask[i, j]:
                top = max(top, t * (scores[i, j] + g * scratch[column[j]]) + bias[j])
        total, values_mean, scores_mean = np.float32(0.0), np.float32(0.0), np.float32(0.0)
        for j in range(scores.shape[1]):
            if mask[i, j]:
                value = scratch[column[j]]
                score = scores[i, j] + g * value
                share = np.exp(t * score + bias[j] - top)
                total += share
                values_mean += share * value
                scores_mean += share * score
        value = scratch[column[own[i]]]
        out[0, i] = weight[i] * t * (values_mean / total - value)
        out[1, i] = weight[i] * (scores_mean / total - scores[i, own[i]] - g * value)
        for e in range(starts[i], stops[i]):
            scratch[items[e]] = np.float32(0.0)
