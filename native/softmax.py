"""The two halves of a sampled softmax around one vectorized exp: logits to exponents, exponentials to gradients."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

F32 = npt.NDArray[np.float32]
Bool = npt.NDArray[np.bool_]


@njit(cache=True, nogil=True)
def exponents(logits: F32, prior: F32, popularity: F32, bias: F32, mask: Bool, weight: F32, own: F32) -> None:
    """logits[i, j] ← l − max_j l, l = logits[i, j] + prior[i]·popularity[j] + bias[j] over the mask, 0 elsewhere.

    logits (rows, columns) in place, mask (rows, columns); row i's own column is i. own[i] (rows,) becomes its own
    exponent, and sums of the others too: see `pushes`. Rows of no weight are left alone.
    """
    rows, columns = logits.shape
    for i in range(rows):
        if not weight[i] > 0.0:
            logits[i, :] = np.float32(0.0)
            continue
        top = np.float32(-np.inf)
        for j in range(columns):
            value = logits[i, j] + prior[i] * popularity[j] + bias[j]
            logits[i, j] = value
            if mask[i, j] and not value <= top:  # NaN gets through
                top = value
        for j in range(columns):
            logits[i, j] = logits[i, j] - top if mask[i, j] else np.float32(0.0)
        own[i] = logits[i, i]


@njit(cache=True, nogil=True)
def pushes(
    exponentials: F32, exponent_sums: F32, own: F32, popularity: F32, mask: Bool, weight: F32, smoothing: float,
    d_prior: F32,
) -> float:  # fmt: skip
    """Turn exponentials (rows, columns) into ∂loss/∂logit in place; the loss.

    Row i's target is (1 − ε) on its own column plus ε evenly over the m columns of its mask (Szegedy et al. 2016, arXiv
    1512.00567, §7): loss_i = w_i·(ln Σ exp − (1 − ε)·own_i − ε/m·Σ_j l_j), ∂ = w_i·(softmax − target). exponent_sums
    (rows,): Σ_j l_j over the mask. d_prior (rows,) becomes Σ_j ∂_j·popularity_j.
    """
    rows, columns = exponentials.shape
    loss = 0.0
    for i in range(rows):
        d_prior[i] = np.float32(0.0)
        if not weight[i] > 0.0:
            exponentials[i, :] = np.float32(0.0)
            continue
        total = np.float32(0.0)
        m = 0
        for j in range(columns):
            if mask[i, j]:
                total += exponentials[i, j]
                m += 1
        even = np.float32(smoothing / m)
        kept = np.float32(1.0 - smoothing)
        scale = weight[i] / total
        loss += weight[i] * (np.log(total) - kept * own[i] - even * exponent_sums[i])
        prior = np.float32(0.0)
        for j in range(columns):
            push = np.float32(0.0)
            if mask[i, j]:
                push = scale * exponentials[i, j] - weight[i] * even
                if j == i:
                    push -= weight[i] * kept
            exponentials[i, j] = push
            prior += push * popularity[j]
        d_prior[i] = prior
    return loss
