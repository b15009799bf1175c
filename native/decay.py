"""Missed decay of rows, applied once."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from numba import njit, types

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]

_READ_F64 = types.Array(types.float64, 1, "C", readonly=True)
_READ_ROWS = types.Array(types.float32, 2, "C", readonly=True)


@njit(types.void(_READ_ROWS, _READ_F64, _READ_F64, types.float32[:, ::1]), cache=True, nogil=True)
def shrink(vectors: F32, factors: F64, thresholds: F64, out: F32) -> None:
    """out = sgn(w)·max(0, |w|·factor − threshold), row by row; factor in [0, 1], threshold ≥ 0. NaN stays NaN.

    vectors, out (n, dim), may be the same array; factors, thresholds (n,). float64 inside and rounded once: a factor
    that differs from 1 by less than float32 can tell still counts where many steps are taken together.
    """
    for i in range(vectors.shape[0]):
        factor, threshold = factors[i], thresholds[i]
        if threshold == 0.0:
            for j in range(vectors.shape[1]):
                out[i, j] = np.float32(np.float64(vectors[i, j]) * factor)
            continue
        for j in range(vectors.shape[1]):
            w = np.float64(vectors[i, j])
            left = math.fabs(w) * factor - threshold
            out[i, j] = np.float32(0.0) if left <= 0.0 else np.float32(math.copysign(left, w))
