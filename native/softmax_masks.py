"""Which columns of a softmax group each row may be told apart from."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]
Bool = npt.NDArray[np.bool_]

_LONG = 4
"""Times the group's columns that a user's items are many."""

_NONE, _ONE, _BITS = np.uint64(0), np.uint64(1), np.int64(64)


def scratch(items: int, group: int) -> U64:
    """What `own_columns` needs for item numbers below `items`: (items + 1, words of a group), zeros."""
    return np.zeros((items + 1, -(-group // 64)), np.uint64)


@njit(cache=True, nogil=True)
def own_columns(
    group: int, target: I64, is_column: Bool, seen_start: I64, seen_stop: I64, seen: I64, out: Bool, places: U64
) -> None:
    """out[i, j] = column j of row i's group counts in row i's softmax.

    Rows and columns are the same n examples in groups of `group` (n a multiple of it). Out stay: padding (is_column
    False), repeats of the row's target, and items its user has: seen[seen_start[i]:seen_stop[i]]. The row's own column
    stays in. target (n,) i64 holds item numbers below len(places) − 1, seen likewise or -1, which is ignored; places is
    `scratch` and left as such.

    Bit j of places[item] says that column j is that item. What a row leaves out is all its items' bits, without a
    branch that would be guessed wrong: a row takes as long as its user has items, not as the group has columns. Who has
    far more items than that is marked once, and compared by column.
    """
    words = places.shape[1]
    marks, marked_start = np.zeros(len(places), np.bool_), -1  # what the user whose items begin there has
    live, gone = np.empty(words, np.uint64), np.empty(words, np.uint64)
    columns = is_column.reshape(-1, group)
    for g in range(len(columns)):
        start = g * group
        for w in range(words):
            live[w] = _NONE
        for j in range(group):
            bit = _ONE << np.uint64(j % _BITS)
            places[target[start + j], j // _BITS] |= bit
            live[j // _BITS] |= bit if columns[g, j] else _NONE
        for i in range(start, start + group):
            first, last = seen_start[i], seen_stop[i]
            long = last - first > _LONG * group  # one user may have half of a large micro-batch
            if long and marked_start != first:
                marks[:] = False
                marked_start = first
                for k in range(first, last):
                    marks[seen[k]] = True
            stop = first if long else last
            if words == 1:  # in a register
                all_of = places[target[i], 0]
                for k in range(first, stop):
                    all_of |= places[seen[k], 0]  # of -1: the last place, where nothing is
                gone[0] = all_of
            else:
                for w in range(words):
                    gone[w] = places[target[i], w]
                for k in range(first, stop):
                    item = seen[k]
                    for w in range(words):
                        gone[w] |= places[item, w]
            for w in range(words):
                kept, begin = live[w] & ~gone[w], w * _BITS
                for b in range(min(_BITS, group - begin)):
                    out[i, begin + b] = (kept >> np.uint64(b)) & _ONE != _NONE
            if long:
                for j in range(group):
                    out[i, j] &= not marks[target[start + j]]
            out[i, i - start] = columns[g, i - start]
        for j in range(group):
            for w in range(words):
                places[target[start + j], w] = _NONE
