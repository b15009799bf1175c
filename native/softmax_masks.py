"""Which columns of a softmax group each row may be told apart from."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

I64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]


@njit(cache=True, nogil=True)
def own_columns(
    group: int, target: I64, is_column: Bool, seen_start: I64, seen_stop: I64, seen: I64, out: Bool, heads: I64
) -> None:
    """out[i, j] = column j of row i's group counts in row i's softmax.

    Rows and columns are the same n examples in groups of `group` (n a multiple of it). Out stay: padding (is_column
    False), repeats of the row's target, and items its user has: seen[seen_start[i]:seen_stop[i]]. The row's own column
    stays in. target (n,) i64 holds item numbers below len(heads), seen likewise, its negative ones are ignored; heads
    is scratch, filled with -1 and left so.

    A group's columns are chained by item: a row takes as long as its user has items, not as the group has columns.
    """
    n = len(target)
    chain = np.empty(group, np.int64)  # the column before with the same item, -1: none
    for start in range(0, n, group):
        for j in range(group):
            item = target[start + j]
            chain[j] = heads[item]
            heads[item] = j
        for i in range(start, start + group):
            out[i] = is_column[start : start + group]
            _leave_out(out[i], heads[target[i]], chain)
            for k in range(seen_start[i], seen_stop[i]):
                if seen[k] >= 0:
                    _leave_out(out[i], heads[seen[k]], chain)
            out[i, i - start] = is_column[i]
        for j in range(group):
            heads[target[start + j]] = -1


@njit(cache=True, inline="always")
def _leave_out(row: Bool, column: int, chain: I64) -> None:
    while column >= 0:
        row[column] = False
        column = chain[column]
