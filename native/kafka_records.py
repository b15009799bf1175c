"""Records of a Kafka record batch (format 2) as columns, and how many of those that wait fit into a micro-batch.

Record: length, attributes (1 byte), timestamp delta, offset delta, key length, key, value length, value, headers; all
numbers but attributes are zigzag varints, −1 the length of null (kafka.apache.org/documentation, "Record").
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from native.memory import read8, read64

U8 = npt.NDArray[np.uint8]
I64 = npt.NDArray[np.int64]

_MAX_SHIFT = 63
_NEWLINES, _LOW7 = np.uint64(0x0A0A0A0A0A0A0A0A), np.uint64(0x7F7F7F7F7F7F7F7F)
_ONES, _EVEN, _UNITS = np.uint64(0x0101010101010101), np.uint64(0x00FF00FF00FF00FF), np.uint64(0x0001000100010001)
_MOST_WORDS = 255


@njit(cache=True, nogil=True)
def _varint(data: U8, p: int, end: int) -> Any:
    """(value of the zigzag varint at p, the place behind it); the place is −1 if it isn't whole in data[:end]."""
    raw, shift = np.uint64(0), np.uint64(0)
    while p < end and shift <= np.uint64(_MAX_SHIFT):
        byte = np.uint64(data[p])
        p += 1
        raw |= (byte & np.uint64(0x7F)) << shift
        if byte < np.uint64(0x80):
            return np.int64(raw >> np.uint64(1)) ^ -np.int64(raw & np.uint64(1)), p
        shift += np.uint64(7)
    return np.int64(0), -1


@njit(cache=True, nogil=True)
def parse_records(
    data: U8, p: int, base_offset: int, first_ms: int, offset: I64, time_ms: I64, key: tuple[I64, I64],
    value: tuple[I64, I64],
) -> int:  # fmt: skip
    """Read the n records that begin at data[p]; returns the first that is damaged, n if none is. O(records).

    data (bytes,). Output, all (n,): offset, time_ms, and of key and value (where it begins, size; −1 for null). A
    record is damaged if a part of it does not end where its length says, or does not lie in `data`. Headers are not
    read.
    """
    key_at, key_size = key
    value_at, value_size = value
    for i in range(len(offset)):
        length, p = _varint(data, p, len(data))
        if p < 0 or length < 1 or length > len(data) - p:
            return i
        end = p + length
        ms, p = _varint(data, p + 1, end)
        if p < 0:
            return i
        delta, p = _varint(data, p, end)
        if p < 0:
            return i
        offset[i], time_ms[i] = base_offset + delta, first_ms + ms
        size, p = _varint(data, p, end)
        if p < 0 or size < -1 or size > end - p:
            return i
        key_at[i], key_size[i] = p, size
        p += max(size, 0)
        size, p = _varint(data, p, end)
        if p < 0 or size < -1 or size > end - p:
            return i
        value_at[i], value_size[i] = p, size
        p += max(size, 0)
        headers, p = _varint(data, p, end)
        if p < 0 or headers < 0 or (headers == 0 and p != end):
            return i
        p = end
    return len(offset)


@njit(cache=True, nogil=True)
def count_lines(data: U8, start: I64, size: I64, out: I64) -> None:
    """out[i] = 1 + newlines in data[start[i]:start[i] + size[i]]; size −1 counts as 0. All (n,).

    Eight bytes at a time: what a newline is subtracted from is 0, and a byte b has its high bit in (b & 127) + 127 | b
    unless it is 0 (Warren, Hacker's Delight, §6-1). 255 words fit into the bytes of a sum.
    """
    base = data.ctypes.data
    for i in range(len(start)):
        at, left = base + start[i], max(size[i], 0)
        lines: Any = 1
        while left >= 8:
            words = min(left >> 3, _MOST_WORDS)
            sums = np.uint64(0)
            for w in range(words):
                word = read64(at + 8 * w) ^ _NEWLINES
                sums += (~(((word & _LOW7) + _LOW7) | word) >> np.uint64(7)) & _ONES
            at, left = at + 8 * words, left - 8 * words
            pairs = (sums & _EVEN) + ((sums >> np.uint64(8)) & _EVEN)
            lines += np.int64((pairs * _UNITS) >> np.uint64(48))
        for k in range(left):
            lines += read8(at + k) == np.uint64(10)
        out[i] = lines


@njit(cache=True, nogil=True)
def fit(offset: I64, size: I64, events: I64, first: int, stop: int, have: int, limit: int) -> Any:
    """(records from `first` on that are taken, events there are then, whether the micro-batch is closed).

    offset, size (−1: a null value), events (n,). Not taken are records from offset `stop` on (−1: no stop), and those
    with which there would be more than `limit` events, unless there are none yet. It is closed once there are `limit`
    events, by a record that does not fit, and behind a null value.
    """
    for i in range(first, len(offset)):
        if 0 <= stop <= offset[i]:
            return i - first, have, False
        if have and have + events[i] > limit:
            return i - first, have, True
        have += events[i]
        if have >= limit or size[i] < 0:
            return i - first + 1, have, True
    return len(offset) - first, have, False
