"""Which columns of a softmax group each row may be told apart from."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

I64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]


@njit(cache=True, nogil=True)
def own_columns(
    group: int, target: I64, is_column: Bool, seen_start: I64, seen_stop: I64, seen: I64, out: Bool, stamps: I64
) -> None:
    """out[i, j] = column j of row i's group counts in row i's softmax.

    Rows and columns are the same n examples in groups of `group` (n a multiple of it). Out stay: padding (is_column
    False), repeats of the row's target, and items its user has: seen[seen_start[i]:seen_stop[i]]. The row's own column
    stays in. target (n,) i64 holds item numbers below len(stamps), seen likewise, its negative ones are ignored; stamps
    is scratch, filled with -1.
    """
    n = len(target)
    for i in range(n):
        start = i // group * group
        for k in range(seen_start[i], seen_stop[i]):
            if seen[k] >= 0:
                stamps[seen[k]] = i
        stamps[target[i]] = i
        for j in range(group):
            out[i, j] = is_column[start + j] and stamps[target[start + j]] != i
        out[i, i - start] = is_column[i]
