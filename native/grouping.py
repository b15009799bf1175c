"""Rows in the order of a small number that each has: a counting sort."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

I64 = npt.NDArray[np.int64]


@njit(cache=True, nogil=True)
def group(numbers: I64, bounds: I64, order: I64) -> None:
    """The rows with number g become order[bounds[g]:bounds[g + 1]], in their old order. O(n + groups).

    numbers (n,) in [0, groups); output: bounds (groups + 1,), order (n,).
    """
    groups = len(bounds) - 1
    bounds[:] = 0
    for i in range(len(numbers)):
        bounds[numbers[i] + 1] += 1
    for g in range(groups):
        bounds[g + 1] += bounds[g]
    # placed from the back: bounds[g + 1] walks down to where group g begins, and then is what bounds[g] must be
    for i in range(len(numbers) - 1, -1, -1):
        g = numbers[i]
        bounds[g + 1] -= 1
        order[bounds[g + 1]] = i
    for g in range(groups):
        bounds[g] = bounds[g + 1]
    bounds[groups] = len(numbers)


def grouped(numbers: I64, groups: int) -> tuple[I64, I64]:
    """(order (n,), bounds (groups + 1,)) of `group`."""
    bounds, order = np.empty(groups + 1, np.int64), np.empty(len(numbers), np.int64)
    group(numbers, bounds, order)
    return order, bounds


@njit(cache=True, nogil=True)
def in_order(bounds: I64, order: I64, time_ms: I64, partition: npt.NDArray[np.uint32], place: I64) -> bool:
    """Whether (time_ms, partition, place) of the rows order[bounds[g]:bounds[g + 1]] never falls, in any group g."""
    for g in range(len(bounds) - 1):
        for k in range(bounds[g] + 1, bounds[g + 1]):
            a, b = order[k - 1], order[k]
            if time_ms[a] != time_ms[b]:
                if time_ms[a] > time_ms[b]:
                    return False
            elif partition[a] != partition[b]:
                if partition[a] > partition[b]:
                    return False
            elif place[a] > place[b]:
                return False
    return True
