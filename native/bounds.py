"""How large values are, in one pass over them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from native.memory import float_to_bits

F32 = npt.NDArray[np.float32]


@njit(cache=True, nogil=True)
def _largest(values: F32) -> np.int32:
    """The bits of the largest magnitude: as whole numbers they are in the order of the magnitudes, NaN above all."""
    most = np.int32(0)
    for i in range(len(values)):
        bits = float_to_bits(values[i]) & np.int32(0x7FFFFFFF)
        most = bits if bits > most else most
    return most


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def longest(rows: F32, dim: int) -> float:
    """Largest sum of squares of the first `dim` columns of (n, width) rows; 0 without rows."""
    most = np.float32(0.0)
    for i in range(len(rows)):
        total = np.float32(0.0)
        for j in range(dim):
            total += rows[i, j] * rows[i, j]
        most = max(most, total)
    return float(most)


def within(values: F32, limit: float) -> bool:
    """Whether all values, of any shape, are finite and at most `limit` in magnitude. limit: a float32."""
    return bool(_largest(np.ascontiguousarray(values).reshape(-1)) <= np.float32(limit).view(np.int32))
