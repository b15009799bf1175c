"""Kafka's default partitioner, for many keys at once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

U8 = npt.NDArray[np.uint8]
I64 = npt.NDArray[np.int64]

_M = np.uint32(0x5BD1E995)
_SEED = np.uint32(0x9747B28C)


@njit(cache=True, nogil=True)
def partitions_of(data: U8, offsets: I64, partitions: int) -> I64:
    """(n,) the partition of each key data[offsets[i]:offsets[i + 1]]. O(bytes).

    murmur2 with Kafka's seed, its sign bit cleared, modulo `partitions` (org.apache.kafka.common.utils.Utils.murmur2).
    """
    out = np.empty(len(offsets) - 1, np.int64)
    for i in range(len(out)):
        p, end = offsets[i], offsets[i + 1]
        h = _SEED ^ np.uint32(end - p)
        while end - p >= 4:
            k = np.uint32(data[p]) | np.uint32(data[p + 1]) << np.uint32(8)
            k |= np.uint32(data[p + 2]) << np.uint32(16) | np.uint32(data[p + 3]) << np.uint32(24)
            k = np.uint32(k * _M)
            k = np.uint32((k ^ (k >> np.uint32(24))) * _M)
            h = np.uint32(np.uint32(h * _M) ^ k)
            p += 4
        left = end - p
        if left > 2:
            h ^= np.uint32(data[p + 2]) << np.uint32(16)
        if left > 1:
            h ^= np.uint32(data[p + 1]) << np.uint32(8)
        if left > 0:
            h = np.uint32((h ^ np.uint32(data[p])) * _M)
        h = np.uint32((h ^ (h >> np.uint32(13))) * _M)
        h ^= h >> np.uint32(15)
        out[i] = np.int64(h & np.uint32(0x7FFFFFFF)) % partitions
    return out
