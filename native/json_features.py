"""The `features` objects of JSON events, whose shape `native.json_events` has checked: values to keys of rows.

Everything a strict reader could see otherwise is left to the caller: a declared name that is written with an escape or
given twice, a value of another type than is declared, limits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from native.features import CATEGORIES, MAX_CATEGORIES, MAX_CATEGORY_BYTES, MAX_VALUES, NUMBER
from native.hashing import key_and_check
from native.json_events import UNSURE, USABLE, _literal, _number, _scalar, _space, _string
from native.memory import read8

U8 = npt.NDArray[np.uint8]
U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]

_SCRATCH = 512


@njit(cache=True, nogil=True)
def most_values(data: U8, starts: I64, sizes: I64) -> int:
    """No fewer values than the objects data[starts[i]:starts[i] + sizes[i]] (n,) hold."""
    most = 0
    for i in range(len(starts)):
        if sizes[i] > 0:
            most += 1
            for k in range(starts[i], starts[i] + sizes[i]):
                most += data[k] == 44
    return most


@njit(cache=True)
def _category(at: int, size: int, name_size: int, buckets: Any, scratch: U8) -> Any:
    """Key of the category of those bytes; `name=` stands in scratch already. As `native.features.keys_of`."""
    for k in range(size):
        scratch[name_size + 1 + k] = read8(at + k)
    key, _ = key_and_check(scratch.ctypes.data, name_size + 1 + size)
    if buckets == 0:
        return key
    rest = key % buckets
    digits = 1
    power = np.uint64(10)
    while rest >= power and digits < 19:
        power *= np.uint64(10)
        digits += 1
    scratch[name_size + 1] = 35
    for k in range(digits):
        scratch[name_size + 1 + digits - k] = 48 + rest % np.uint64(10)
        rest //= np.uint64(10)
    key, _ = key_and_check(scratch.ctypes.data, name_size + 2 + digits)
    return key


@njit(cache=True)
def _feature(at: int, size: int, name_offsets: I64, names: U8) -> Any:
    """Number of the declared feature of that name, -1 if there is none."""
    for k in range(len(name_offsets) - 1):
        first = name_offsets[k]
        if name_offsets[k + 1] - first != size:
            continue
        same = True
        for j in range(size):
            if read8(at + j) != names[first + j]:
                same = False
                break
        if same:
            return k
    return -1


@njit(cache=True, nogil=True)
def read_features(
    data: U8,
    starts: I64,
    sizes: I64,
    names: tuple[I64, U8],
    kinds: U8,
    hash_buckets: U64,
    bounds: tuple[I64, F64, I64, U64],
    status: U8,
    unknown: U8,
    first: I64,
    count: I64,
    number: U8,
    key: U64,
) -> int:
    """Values of the objects data[starts[i]:starts[i] + sizes[i]] of the USABLE lines i (n,); returns how many.

    Schema: names (offsets, bytes), kinds, hash_buckets (f,), bounds = (offsets (f + 1,) of boundaries, boundaries,
    offsets of bucket keys, bucket keys). Output: a line's values are number, key [first[i], first[i] + count[i]); a
    line that can't be read for sure becomes UNSURE; unknown[i] is set where a name isn't declared. number and key have
    room for `most_values`.
    """
    name_offsets, name_bytes = names
    boundary_offsets, boundaries, bucket_offsets, bucket_keys = bounds
    base = data.ctypes.data
    scratch = np.empty(_SCRATCH, np.uint8)
    given = np.zeros(len(kinds), np.bool_)
    n = 0
    for i in range(len(starts)):
        first[i], count[i] = n, 0
        if sizes[i] <= 0 or status[i] != USABLE:
            continue
        begin, size = n, 0
        given[:] = False
        p, end = base + starts[i] + 1, base + starts[i] + sizes[i]
        sure = True
        p = _space(p, end)
        while sure and read8(p) != 125:
            q = _string(p + 1, end)
            f = _feature(p + 1, q - p - 1, name_offsets, name_bytes)
            p = _space(_space(q + 1, end) + 1, end)
            listed = read8(p) == 91
            if f < 0:
                unknown[i] = 1
            elif given[f]:
                sure = False
                break
            else:
                given[f] = True
                size = name_offsets[f + 1] - name_offsets[f]
                scratch[:size] = name_bytes[name_offsets[f] : name_offsets[f + 1]]
                scratch[size] = 61
                if listed and kinds[f] != CATEGORIES:
                    sure = False
                    break
            if listed:
                p = _space(p + 1, end)
            values = 0
            while sure and not (listed and read8(p) == 93):
                q = _scalar(p, end)
                if f >= 0:
                    c = np.int64(read8(p))
                    values += 1
                    if values > MAX_CATEGORIES or n - begin >= MAX_VALUES:
                        sure = False
                    elif kinds[f] == NUMBER:
                        if c == 45 or 48 <= c <= 57:
                            _, x = _number(p + 1 if c == 45 else p, end)
                            x = -x if c == 45 else x
                            low, high = boundary_offsets[f], boundary_offsets[f + 1]
                            bucket = np.searchsorted(boundaries[low:high], x, side="right")
                            number[n], key[n] = f, bucket_keys[bucket_offsets[f] + bucket]
                            n += 1
                        else:
                            _, literal = _literal(p, end)
                            sure = literal == 2
                    elif c == 34 or 48 <= c <= 57:
                        at, stop = (p + 1, q - 1) if c == 34 else (p, q)
                        whole = 1 <= stop - at <= MAX_CATEGORY_BYTES
                        if c != 34:
                            for k in range(at, stop):
                                whole = whole and read8(k) != 46
                        if whole:
                            number[n] = f
                            key[n] = _category(at, stop - at, size, hash_buckets[f], scratch)
                            n += 1
                        else:
                            sure = False
                    else:
                        _, literal = _literal(p, end)
                        sure = literal == 2 and not listed
                p = _space(q, end)
                if not listed:
                    break
                if read8(p) == 44:
                    p = _space(p + 1, end)
            if not sure:
                break
            if listed:
                p = _space(p + 1, end)
            if read8(p) == 44:
                p = _space(p + 1, end)
        if sure:
            count[i] = n - begin
        else:
            status[i] = UNSURE
            n = begin
    return n
