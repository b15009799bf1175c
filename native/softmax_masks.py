"""Which columns of a softmax group each row may be told apart from."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]

_LONG = 4
"""Times the group's columns that a user's items are many."""


@njit(cache=True, nogil=True)
def own_columns(
    group: int, target: I64, is_column: Bool, seen_start: I64, seen_stop: I64, seen: I64, out: Bool, heads: I32
) -> None:
    """out[i, j] = column j of row i's group counts in row i's softmax.

    Rows and columns are the same n examples in groups of `group` (n a multiple of it). Out stay: padding (is_column
    False), repeats of the row's target, and items its user has: seen[seen_start[i]:seen_stop[i]]. The row's own column
    stays in. target (n,) i64 holds item numbers below len(heads) − 1, seen likewise or -1, which is ignored; heads i32
    is scratch, filled with -1 and left so.

    A group's columns are chained by item: a row takes as long as its user has items, not as the group has columns. Who
    has far more items than that is marked once, and compared by column.
    """
    marks, marked_start = np.zeros(len(heads), np.bool_), -1  # what the user whose items begin there has
    chain = np.empty(group, np.int32)  # the column before with the same item, -1: none
    columns = is_column.reshape(-1, group)
    for g in range(len(columns)):
        start = g * group
        for j in range(group):
            item = target[start + j]
            chain[j] = heads[item]
            heads[item] = j
        for i in range(start, start + group):
            for j in range(group):  # by element: a slice of a row is an object that is counted, which costs more
                out[i, j] = columns[g, j]
            column = heads[target[i]]
            while column >= 0:
                out[i, column] = False
                column = chain[column]
            if seen_stop[i] - seen_start[i] > _LONG * group:  # one user may have half of a large micro-batch
                if marked_start != seen_start[i]:
                    marks[:] = False
                    marked_start = seen_start[i]
                    for k in range(seen_start[i], seen_stop[i]):
                        marks[seen[k]] = True
                for j in range(group):
                    out[i, j] &= not marks[target[start + j]]
                out[i, i - start] = columns[g, i - start]
                continue
            for k in range(seen_start[i], seen_stop[i]):
                column = heads[seen[k]]  # of -1: the last place; a test for it would be guessed wrong too often
                while column >= 0:
                    out[i, column] = False
                    column = chain[column]
            out[i, i - start] = columns[g, i - start]
        for j in range(group):
            heads[target[start + j]] = -1
