"""Which items meet all conditions of a filter, from the values that they have."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]
Bool = npt.NDArray[np.bool_]


@njit(cache=True, nogil=True)
def passing(first: I64, count: I64, rows: I64, meets: U64, every: np.uint64, out: Bool) -> None:
    """out[i] = whether the union of meets[rows[k]] over k in first[i]:first[i] + count[i] is `every`. O(n + values).

    first and count (n,): where an item's values lie in rows (m,), which refer to meets (w,): a bit for each condition
    that the value meets. every: all the bits, at least one. out (n,).
    """
    for i in range(len(first)):
        met = np.uint64(0)
        for k in range(first[i], first[i] + count[i]):
            met |= meets[rows[k]]
        out[i] = met == every
