"""Noticing, in constant memory, that a key turns up in two places."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

U64 = npt.NDArray[np.uint64]
U32 = npt.NDArray[np.uint32]

_MIX, _SHIFT = np.uint64(0x9E3779B97F4A7C15), np.uint64(40)


@njit(cache=True, nogil=True)
def count_crossings(keys: U64, places: U32, seen_keys: U64, seen_places: U32) -> int:
    """How many of the keys were last seen in another place; remembers where each was seen now.

    keys (n,) u64, places (n,) u32 below 2^32 - 1. The memory is a direct-mapped table of 2^k slots, k ≤ 24: seen_keys
    any, seen_places filled with 2^32 - 1 at first. A key pushed out of its slot by another is forgotten: crossings are
    missed, never invented.
    """
    mask = np.uint64(len(seen_keys) - 1)
    found = 0
    for i in range(len(keys)):
        slot = np.int64(((keys[i] * _MIX) >> _SHIFT) & mask)
        if seen_keys[slot] == keys[i] and seen_places[slot] != np.uint32(0xFFFFFFFF) and seen_places[slot] != places[i]:
            found += 1
        seen_keys[slot] = keys[i]
        seen_places[slot] = places[i]
    return found
