"""Keys and check bits of whole id columns: the bulk twin of `native.identity`.

xxh3-64 with seed 0 after Yann Collet's reference (xxhash.h, "XXH3_64bits", default secret) for inputs up to 512 bytes,
which need no more than one block of the long-input loop; FNV-1a-32 after draft-eastlake-fnv.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit, types

from native.identity import MAX_ID_BYTES
from native.memory import fold_product, read8, read32, read64
from native.ragged import Ragged

U8 = npt.NDArray[np.uint8]
U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]

_SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221"
    "b8084674f743248ee03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb"
    "170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)
_SECRET64 = np.array([int.from_bytes(_SECRET[i : i + 8], "little") for i in range(len(_SECRET) - 7)], np.uint64)
"""The secret as one little-endian word per byte offset: the algorithm reads it unaligned."""

_P32_1, _P32_2, _P32_3 = np.uint64(0x9E3779B1), np.uint64(0x85EBCA77), np.uint64(0xC2B2AE3D)
_P64_1, _P64_2 = np.uint64(0x9E3779B185EBCA87), np.uint64(0xC2B2AE3D27D4EB4F)
_P64_3, _P64_4 = np.uint64(0x165667B19E3779F9), np.uint64(0x85EBCA77C2B2AE63)
_P64_5 = np.uint64(0x27D4EB2F165667C5)
_MX1, _MX2 = np.uint64(0x165667919E3779F9), np.uint64(0x9FB21C651E98DF25)
_LOW32 = np.uint64(0xFFFFFFFF)
_LINE_FEED = 10
_TEXT_BIT = np.uint64(1 << 63)
_FNV_BASIS, _FNV_PRIME = np.uint32(0x811C9DC5), np.uint32(0x01000193)
_STRIPE, _LAST_STRIPE = 64, len(_SECRET) - 64 - 7


def _shift(bits: int) -> Any:
    return np.uint64(bits)


_S8, _S16, _S24, _S28, _S29, _S32, _S33, _S35, _S37 = map(_shift, (8, 16, 24, 28, 29, 32, 33, 35, 37))


@njit(cache=True)
def _swap32(x: Any) -> Any:
    x = ((x & np.uint64(0x00FF00FF)) << _S8) | ((x >> _S8) & np.uint64(0x00FF00FF))
    return ((x << _S16) | (x >> _S16)) & _LOW32


@njit(cache=True)
def _swap64(x: Any) -> Any:
    return (_swap32(x & _LOW32) << _S32) | _swap32(x >> _S32)


@njit(cache=True)
def _rotl(x: Any, bits: int) -> Any:
    return (x << np.uint64(bits)) | (x >> np.uint64(64 - bits))


@njit(cache=True)
def _avalanche(h: Any) -> Any:
    h ^= h >> _S37
    h *= _MX1
    return h ^ (h >> _S32)


@njit(cache=True)
def _avalanche_xxh64(h: Any) -> Any:
    h ^= h >> _S33
    h *= _P64_2
    h ^= h >> _S29
    h *= _P64_3
    return h ^ (h >> _S32)


@njit(cache=True)
def _mix16(at: int, secret: int) -> Any:
    return fold_product(read64(at) ^ _SECRET64[secret], read64(at + 8) ^ _SECRET64[secret + 8])


@njit(cache=True)
def _short(at: int, size: int) -> Any:
    """0 to 16 bytes."""
    n = np.uint64(size)
    if size > 8:
        low = read64(at) ^ (_SECRET64[24] ^ _SECRET64[32])
        high = read64(at + size - 8) ^ (_SECRET64[40] ^ _SECRET64[48])
        return _avalanche(n + _swap64(low) + high + fold_product(low, high))
    if size >= 4:
        h = read32(at + size - 4) | (read32(at) << _S32)
        h ^= _SECRET64[8] ^ _SECRET64[16]
        h ^= _rotl(h, 49) ^ _rotl(h, 24)
        h *= _MX2
        h ^= (h >> _S35) + n
        h *= _MX2
        return h ^ (h >> _S28)
    if size > 0:
        first, middle, last = read8(at), read8(at + (size >> 1)), read8(at + size - 1)
        h = (first << _S16) | (middle << _S24) | last | (n << _S8)
        return _avalanche_xxh64(h ^ ((_SECRET64[0] & _LOW32) ^ (_SECRET64[4] & _LOW32)))
    return _avalanche_xxh64(_SECRET64[56] ^ _SECRET64[64])


@njit(cache=True)
def _medium(at: int, size: int) -> Any:
    """17 to 240 bytes."""
    h = np.uint64(size) * _P64_1
    if size <= 128:
        for i in range((size - 1) // 32, -1, -1):
            h += _mix16(at + 16 * i, 32 * i)
            h += _mix16(at + size - 16 * (i + 1), 32 * i + 16)
        return _avalanche(h)
    for i in range(8):
        h += _mix16(at + 16 * i, 16 * i)
    h = _avalanche(h)
    for i in range(8, size // 16):
        h += _mix16(at + 16 * i, 16 * (i - 8) + 3)
    return _avalanche(h + _mix16(at + size - 16, 119))


@njit(cache=True)
def _lane(word: Any, key: Any) -> Any:
    mixed = word ^ key
    return (mixed & _LOW32) * (mixed >> _S32)


@njit(cache=True)
def _long(at: int, size: int) -> Any:
    """241 to 1024 bytes: one block of 64-byte stripes over eight accumulators, held in scalars to allocate nothing."""
    a0, a1, a2, a3 = _P32_3, _P64_1, _P64_2, _P64_3
    a4, a5, a6, a7 = _P64_4, _P32_2, _P64_5, _P32_1
    stripes = (size - 1) // _STRIPE
    for stripe in range(stripes + 1):
        if stripe < stripes:
            p, s = at + _STRIPE * stripe, 8 * stripe
        else:
            p, s = at + size - _STRIPE, _LAST_STRIPE
        d0, d1, d2, d3 = read64(p), read64(p + 8), read64(p + 16), read64(p + 24)
        d4, d5, d6, d7 = read64(p + 32), read64(p + 40), read64(p + 48), read64(p + 56)
        a0 += d1 + _lane(d0, _SECRET64[s])
        a1 += d0 + _lane(d1, _SECRET64[s + 8])
        a2 += d3 + _lane(d2, _SECRET64[s + 16])
        a3 += d2 + _lane(d3, _SECRET64[s + 24])
        a4 += d5 + _lane(d4, _SECRET64[s + 32])
        a5 += d4 + _lane(d5, _SECRET64[s + 40])
        a6 += d7 + _lane(d6, _SECRET64[s + 48])
        a7 += d6 + _lane(d7, _SECRET64[s + 56])
    h = np.uint64(size) * _P64_1
    h += fold_product(a0 ^ _SECRET64[11], a1 ^ _SECRET64[19])
    h += fold_product(a2 ^ _SECRET64[27], a3 ^ _SECRET64[35])
    h += fold_product(a4 ^ _SECRET64[43], a5 ^ _SECRET64[51])
    h += fold_product(a6 ^ _SECRET64[59], a7 ^ _SECRET64[67])
    return _avalanche(h)


@njit(cache=True)
def xxh3_64(at: int, size: int) -> Any:
    """xxh3-64, seed 0, of `size` ≤ 1024 bytes at an address, which the caller answers for."""
    if size <= 16:
        return _short(at, size)
    if size <= 240:
        return _medium(at, size)
    return _long(at, size)


@njit(cache=True)
def fnv1a_32(at: int, size: int) -> Any:
    """FNV-1a-32 of the bytes at an address."""
    h = _FNV_BASIS
    for i in range(at, at + size):
        h = np.uint32((h ^ np.uint32(read8(i))) * _FNV_PRIME)
    return h


@njit(cache=True)
def key_and_check(at: int, size: int) -> Any:
    """(key uint64, check uint32) of the id of `size` ≤ 512 bytes at an address; see `native.identity`."""
    if 0 < size <= 19 and (read8(at) != np.uint64(48) or size == 1):
        value = np.uint64(0)
        digits = True
        for i in range(at, at + size):
            digit = read8(i) - np.uint64(48)  # wraps far above 9 for what lies below "0"
            if digit > np.uint64(9):
                digits = False
                break
            value = value * np.uint64(10) + digit  # 19 nines fit 64 bits
        if digits and value < _TEXT_BIT:
            return value, np.uint32(0)
    return xxh3_64(at, size) | _TEXT_BIT, fnv1a_32(at, size)


@njit(
    types.void(
        types.Array(types.int64, 1, "C", readonly=True),
        types.Array(types.uint8, 1, "C", readonly=True),
        types.uint64[::1],
        types.uint32[::1],
    ),
    cache=True,
    nogil=True,
)
def _fill(offsets: I64, data: U8, keys: U64, checks: U32) -> None:
    base = data.ctypes.data
    for i in range(len(keys)):
        key, check = key_and_check(base + offsets[i], offsets[i + 1] - offsets[i])
        keys[i] = key
        checks[i] = check


@njit(types.int64(types.Array(types.uint8, 1, "C", readonly=True), types.uint64[::1]), cache=True, nogil=True)
def _fill_from_lines(text: U8, keys: U64) -> int:
    start = 0
    for i in range(len(keys)):
        end = start
        while end < len(text) and text[end] != _LINE_FEED:
            end += 1
        if not 0 < end - start <= MAX_ID_BYTES:
            return i
        keys[i] = key_and_check(text.ctypes.data + start, end - start)[0]
        start = end + 1
    return -1


def keys_of_lines(text: bytes, n: int) -> U64 | None:
    """(n,) keys of n ids in canonical bytes with a line feed between; None if one has not 1 to 512 bytes. Pure."""
    keys = np.empty(n, np.uint64)
    return keys if _fill_from_lines(np.frombuffer(text, np.uint8), keys) < 0 else None


def frozen(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The array as a contiguous read-only view, so that each kernel is compiled once, not per kind of array."""
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view


def keys_and_checks(ids: Ragged) -> tuple[U64, U32]:
    """(keys (n,) uint64, check bits (n,) uint32) of ids in canonical bytes. Pure.

    Bit for bit `native.identity.key_and_check` of each element. Raises ValueError if an id has more than 512 bytes or
    the offsets leave the data.
    """
    n = len(ids)
    keys, checks = np.empty(n, np.uint64), np.empty(n, np.uint32)
    if n == 0:
        return keys, checks
    lengths = ids.lengths
    if int(lengths.max()) > MAX_ID_BYTES:
        raise ValueError(f"an id has {int(lengths.max())} bytes; at most {MAX_ID_BYTES} are allowed")
    if int(lengths.min()) < 0 or int(ids.offsets[0]) < 0 or int(ids.offsets[-1]) > len(ids.data):
        raise ValueError(f"offsets leave the {len(ids.data)} bytes of the column, or decrease")
    _fill(frozen(ids.offsets.astype(np.int64, copy=False)), frozen(ids.data), keys, checks)
    return keys, checks
