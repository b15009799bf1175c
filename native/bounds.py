"""Whether values stay inside a bound, in one pass over them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

F32 = npt.NDArray[np.float32]


@njit(cache=True, nogil=True)
def _within(values: F32, limit: np.float32) -> bool:
    beyond = 0
    for i in range(len(values)):
        beyond += not (abs(values[i]) <= limit)  # NaN is no less than anything
    return beyond == 0


def within(values: F32, limit: float) -> bool:
    """Whether all values, of any shape, are finite and at most `limit` in magnitude. limit: a float32."""
    return bool(_within(np.ascontiguousarray(values).reshape(-1), np.float32(limit)))
