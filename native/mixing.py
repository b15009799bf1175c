"""Splitmix64 (Steele, Lea, Flood 2014): the one mixer behind shards and initial vectors."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit, types

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_M1 = np.uint64(0xBF58476D1CE4E5B9)
_M2 = np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31, _S32 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(32)
_KEYS = types.Array(types.uint64, 1, "C", readonly=True)


@njit(types.uint64(types.uint64), cache=True, nogil=True)
def mix(z: np.uint64) -> np.uint64:
    """The finalizer of splitmix64: a bijection of 64 bits in which every input bit reaches every output bit."""
    z = (z ^ (z >> _S30)) * _M1
    z = (z ^ (z >> _S27)) * _M2
    return z ^ (z >> _S31)


@njit(types.void(_KEYS, types.uint64, types.int64[::1]), cache=True, nogil=True)
def mix_keys(keys: U64, mask: int, out: I64) -> None:
    """out[i] = mix(keys[i]) & mask. keys, out (n,)."""
    for i in range(keys.shape[0]):
        out[i] = np.int64(mix(keys[i]) & mask)


@njit(types.int64(types.uint64, types.int64), cache=True, nogil=True)
def shard_of(key: np.uint64, shards: int) -> np.int64:
    """Shard of a key: ⌊(high 32 bits of mix(key)) · shards / 2^32⌋.

    From the high bits: an open-addressing index inside a shard takes the low ones, and with the same bits every shard
    would use only 1/shards of its slots.
    """
    return np.int64(((mix(key) >> _S32) * np.uint64(shards)) >> _S32)


@njit(types.void(_KEYS, types.int64[::1], types.int64[::1]), cache=True, nogil=True)
def partition(keys: U64, starts: I64, order: I64) -> None:
    """Stable counting sort of keys by shard.

    keys (n,) u64; starts (shards + 1,) i64 zeros, becomes the bounds of each shard in `order`; order (n,) i64, becomes
    the rows of `keys` shard by shard.
    """
    n = keys.shape[0]
    shards = starts.shape[0] - 1
    for i in range(n):
        starts[shard_of(keys[i], shards) + 1] += 1
    for s in range(shards):
        starts[s + 1] += starts[s]
    # place from the back, so that starts[s + 1] walks down to the start of shard s and then is shifted into place
    for i in range(n - 1, -1, -1):
        shard = shard_of(keys[i], shards)
        starts[shard + 1] -= 1
        order[starts[shard + 1]] = i
    for s in range(shards):
        starts[s] = starts[s + 1]
    starts[shards] = n
