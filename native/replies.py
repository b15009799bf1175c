"""Reading RESP2 replies in a buffer: where a reply ends, and arrays of bulk strings without an object per string."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit, types

from native.rows import copy

U8 = npt.NDArray[np.uint8]
I64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]

_READ_U8 = types.Array(types.uint8, 1, "C", readonly=True)
_numba: Any = types  # publishes no types
_PAIR = _numba.UniTuple(types.int64, 2)

DAMAGED = -1
"""Pending replies of a buffer that isn't RESP2."""


@njit(_PAIR(_READ_U8, types.int64, types.int64), cache=True, nogil=True)
def _number(data: U8, at: Any, end: Any) -> Any:
    """(number that begins at `at`, where its CRLF ends); the second is 0 if the line isn't complete."""
    value = np.int64(0)
    negative = False
    for p in range(at, end):
        byte = data[p]
        if byte == 13:
            if p + 1 >= end:
                break
            return (-value if negative else value), np.int64(p + 2)
        if byte == 45:
            negative = True
        else:
            value = value * 10 + (np.int64(byte) - 48)
    return np.int64(0), np.int64(0)


@njit(_PAIR(_READ_U8, types.int64, types.int64, types.int64), cache=True, nogil=True)
def skip_replies(data: U8, at: Any, end: int, pending: Any) -> Any:
    """Go past `pending` replies from `at` on: (where it stopped, how many are pending still), to be gone on with.

    Nested arrays count as pending replies. Stops before the first element that isn't whole in data[:end].
    """
    while pending > 0 and at < end:
        kind = data[at]
        if kind in (36, 42):  # $ bulk string, * array
            value, line_end = _number(data, at + 1, end)
            if line_end == 0:
                break
            if kind == 42:
                at = line_end
                pending += max(value, np.int64(0)) - 1
                continue
            if value >= 0:
                if value > end - line_end - 2:
                    break
                line_end += value + 2
            at = line_end
            pending -= 1
            continue
        if kind not in (43, 45, 58):  # + simple string, - error, : integer
            return np.int64(at), np.int64(DAMAGED)
        p = at + 1
        while p + 1 < end and not (data[p] == 13 and data[p + 1] == 10):
            p += 1
        if p + 1 >= end:
            break
        at = p + 2
        pending -= 1
    return np.int64(at), np.int64(pending)


@njit(
    _PAIR(_READ_U8, types.int64, types.int64, types.boolean[::1], types.int64[::1], types.int64, types.uint8[::1]),
    cache=True,
    nogil=True,
)
def take_bulks(data: U8, at: Any, end: int, found: Bool, bounds: I64, taken: Any, out: U8) -> Any:
    """Copy an array of n bulk strings that is whole in data[at:end], as `skip_replies` has found, end to end into out.

    found (n,): False for null. Strings are numbered from `taken` on: number k ends at bounds[k + 1] of out, where
    bounds[taken] is set. Returns (how many are taken now, where the array ends), or (−1, the place of what is no bulk
    string). The caller sizes out: bounds[taken] + end − at bytes are enough.
    """
    n, at = _number(data, at + 1, end)
    if n != found.shape[0]:
        return np.int64(-1), np.int64(at)
    to = bounds[taken]
    for i in range(n):
        if data[at] != 36:
            return np.int64(-1), np.int64(at)
        size, at = _number(data, at + 1, end)
        found[i] = size >= 0
        if size >= 0:
            copy(out, to, data, at, size)
            to += size
            at += size + 2
            taken += 1
            bounds[taken] = to
    return np.int64(taken), np.int64(at)
