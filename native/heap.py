"""A heap of the best so far: arrays `best` of scores and `slots` of items, whose root is the worst of the kept.

Of two equal scores that of the lower slot is better.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

F32 = npt.NDArray[np.float32]
I64 = npt.NDArray[np.int64]


@njit(cache=True, nogil=True)
def sort_heap(best: F32, slots: I64, size: int) -> None:
    """Heap sort: worst to the end."""
    for end in range(size - 1, 0, -1):
        s, i = best[end], slots[end]
        best[end], slots[end] = best[0], slots[0]
        sift_down(best, slots, end, s, i)


@njit(cache=True, nogil=True)
def sift_up(best: F32, slots: I64, size: int, s: np.float32, i: int) -> None:
    """Into a heap of `size`, whose root is the worst of the kept."""
    at = size
    while at > 0:
        parent = (at - 1) // 2
        if best[parent] < s or (best[parent] == s and slots[parent] > i):
            break
        best[at] = best[parent]
        slots[at] = slots[parent]
        at = parent
    best[at] = s
    slots[at] = i


@njit(cache=True, nogil=True)
def sift_down(best: F32, slots: I64, size: int, s: np.float32, i: int) -> None:
    at = 0
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        right = child + 1
        if right < size and (best[right] < best[child] or (best[right] == best[child] and slots[right] > slots[child])):
            child = right
        if s < best[child] or (s == best[child] and i > slots[child]):
            break
        best[at] = best[child]
        slots[at] = slots[child]
        at = child
    best[at] = s
    slots[at] = i
