"""The row record: one binary string per row, the same in every backend.

    header   48 bytes, HEADER, little-endian
    body     embedding, dense: dim float32, then state_dim float32. sequence: `entries` entries of 32 bytes. record:
             ORDER_BYTES of the value's place in time, then `entries` bytes of value
    id       id_len bytes
    fence    FENCE_BYTES, if the header's FENCED is set

The two highest bits of `entries` are flags. BARE: there is no row; the record is a header without body and id, which
counts a key that isn't admitted yet or remembers one that was forgotten or evicted. FENCED: see above.

A record's length is a function of its header and the table, so a record of another table or a torn one is noticed.
Kernels see headers and floats as bytes, because records lie end to end and are not aligned.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit, types

U8 = npt.NDArray[np.uint8]
U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]

HEADER = np.dtype(
    [
        ("clock", "<i8"),
        ("count", "<i8"),
        ("updated_ms", "<i8"),
        ("last_seen", "<i8"),
        ("gap", "<f4"),
        ("popularity", "<f4"),
        ("check", "<u4"),
        ("entries", "<u2"),
        ("id_len", "<u2"),
    ]
)
HEADER_BYTES = 48
ENTRY_BYTES = 32
ORDER_BYTES = 20
FENCE_BYTES = 32
BARE, FENCED = 0x4000, 0x8000
SIZE = 0x3FFF
"""Flags and size in a header's `entries`."""

_READ_U8 = types.Array(types.uint8, 1, "C", readonly=True)
_READ_U8_2 = types.Array(types.uint8, 2, "C", readonly=True)
_READ_I64 = types.Array(types.int64, 1, "C", readonly=True)
_READ_U64 = types.Array(types.uint64, 1, "C", readonly=True)
_READ_BOOL = types.Array(types.boolean, 1, "C", readonly=True)
_U8_2 = types.uint8[:, ::1]
_I64 = types.int64[::1]


@njit(types.void(types.uint8[::1], types.int64, _READ_U8, types.int64, types.int64), cache=True, nogil=True)
def copy(out: U8, to: int, data: U8, start: int, size: int) -> None:
    """out[to:to + size] = data[start:start + size].

    Through slices: an index that is a sum may be negative to numba, and the test for it keeps LLVM from copying in
    blocks (570 against 100 ns for a row of 560 bytes).
    """
    target = out[to : to + size]
    source = data[start : start + size]
    for b in range(size):
        target[b] = source[b]


@njit(types.int64(_READ_U8, _READ_I64, types.int64, types.int64, _READ_I64, _U8_2, _I64, _I64), cache=True, nogil=True)
def decode_headers(
    data: U8, bounds: I64, body: int, unit: int, rows: I64, headers: U8, body_at: I64, id_at: I64
) -> int:
    """Headers, body and id positions of m records lying end to end.

    data: the records; bounds (m + 1,) their bounds; a body has `body` bytes and `unit` more for each of the header's
    `entries`; rows (m,) the output row of each. headers (n, 48), body_at and id_at (n,) are written at those rows.
    Returns the first record whose length doesn't fit, else −1; never reads outside a record.
    """
    for k in range(rows.shape[0]):
        start = bounds[k]
        length = bounds[k + 1] - start
        if length < HEADER_BYTES:
            return k
        i = rows[k]
        copy(headers[i], 0, data, start, HEADER_BYTES)
        high = np.int64(headers[i, 45])
        size = np.int64(0)
        id_len = np.int64(0)
        if high & 0x40 == 0:
            size = body + unit * (np.int64(headers[i, 44]) + ((high & 0x3F) << 8))
            id_len = np.int64(headers[i, 46]) + (np.int64(headers[i, 47]) << 8)
        fence = FENCE_BYTES if high & 0x80 else 0
        if length != HEADER_BYTES + size + id_len + fence:
            return k
        body_at[i] = start + HEADER_BYTES
        id_at[i] = start + HEADER_BYTES + size
    return -1


@njit(types.void(_READ_U8, _READ_I64, _READ_BOOL, types.int64, _U8_2), cache=True, nogil=True)
def gather_fixed(data: U8, at: I64, found: Bool, skip: int, out: U8) -> None:
    """out[i] = out.shape[1] bytes of data from at[i] + skip on, where found[i]. at, found (n,), out (n, bytes)."""
    for i in range(out.shape[0]):
        if found[i]:
            copy(out[i], 0, data, at[i] + skip, out.shape[1])


@njit(types.void(_READ_U8_2, _READ_I64, _U8_2), cache=True, nogil=True)
def scatter_rows(rows: U8, at: I64, out: U8) -> None:
    """out[at[k]] = rows[k]. rows (m, bytes), at (m,), out (n, bytes)."""
    for k in range(at.shape[0]):
        copy(out[at[k]], 0, rows[k], 0, rows.shape[1])


@njit(types.void(_READ_U8, _READ_I64, _READ_BOOL, _READ_I64, types.uint8[::1]), cache=True, nogil=True)
def gather_ragged(data: U8, at: I64, chosen: Bool, offsets: I64, out: U8) -> None:
    """out[offsets[i]:offsets[i + 1]] = so many bytes of data from at[i] on, where chosen[i]. offsets (n + 1,)."""
    for i in range(at.shape[0]):
        if not chosen[i]:
            continue
        copy(out, offsets[i], data, at[i], offsets[i + 1] - offsets[i])


@njit(types.void(_READ_U8, _READ_I64, _READ_I64, _READ_BOOL, _READ_I64, types.uint8[::1]), cache=True, nogil=True)
def put_ragged(data: U8, start: I64, lengths: I64, chosen: Bool, at: I64, out: U8) -> None:
    """out[at[i]:] = lengths[i] bytes of data from start[i] on, where chosen[i]. All (n,)."""
    for i in range(at.shape[0]):
        if chosen[i]:
            copy(out, at[i], data, start[i], lengths[i])


@njit(types.void(_READ_U8_2, _READ_BOOL, _READ_I64, types.uint8[::1]), cache=True, nogil=True)
def put_fixed(rows: U8, chosen: Bool, at: I64, out: U8) -> None:
    """out[at[i]:] = rows[i], where chosen[i]. rows (n, bytes), chosen and at (n,)."""
    for i in range(at.shape[0]):
        if chosen[i]:
            copy(out, at[i], rows[i], 0, rows.shape[1])


@njit(types.int64(types.int64), cache=True, nogil=True)
def digits(value: int) -> int:
    """Decimal digits of value ≥ 0."""
    n = 1
    while value >= 10:
        value //= 10
        n += 1
    return n


FIELD_FRAME = 14
"""Bytes of `$8 CRLF <key> CRLF`, a key as a RESP bulk string."""


@njit(types.int64(_READ_I64, types.boolean, _I64), cache=True, nogil=True)
def place_records(lengths: I64, framed: bool, at: I64) -> np.int64:
    """at[k] = where record k begins in an output buffer; returns the buffer's size. lengths, at (m,).

    framed: each record is preceded by its key and its own length as RESP bulk strings and followed by CRLF, so that the
    buffer is the argument list of HSET.
    """
    total = np.int64(0)
    for k in range(lengths.shape[0]):
        if framed:
            total += FIELD_FRAME + 3 + digits(lengths[k])
        at[k] = total
        total += lengths[k]
        if framed:
            total += 2
    return total


@njit(
    types.void(
        _READ_I64, _READ_U64, _READ_U8_2, _READ_U8_2, _READ_U8_2, _READ_U8, _READ_I64, _READ_U8, _READ_I64,
        types.boolean, _READ_I64, types.uint8[::1],
    ),
    cache=True,
    nogil=True,
)  # fmt: skip
def encode_records(
    rows: I64,
    keys: U64,
    headers: U8,
    vectors: U8,
    state: U8,
    entries: U8,
    entry_bounds: I64,
    ids: U8,
    id_bounds: I64,
    framed: bool,
    at: I64,
    out: U8,
) -> None:
    """Write the records of `rows` (m,) into `out` at `at` (m,), both as from `place_records`.

    keys (n,); headers (n, 48), vectors (n, 4·dim), state (n, 4·state_dim): bytes; entries: 32 bytes each, row i's at
    entry_bounds[i:i + 2]; ids: row i's bytes at id_bounds[i:i + 2]. Widths may be 0.
    """
    for k in range(rows.shape[0]):
        i = rows[k]
        p = at[k]
        entries_from = ENTRY_BYTES * entry_bounds[i]
        entries_size = ENTRY_BYTES * entry_bounds[i + 1] - entries_from
        id_size = id_bounds[i + 1] - id_bounds[i]
        length = HEADER_BYTES + vectors.shape[1] + state.shape[1] + entries_size + id_size
        if framed:
            n = digits(length)
            q = p - (FIELD_FRAME + 3 + n)
            out[q] = 36  # $
            out[q + 1] = 56  # 8
            out[q + 2] = 13
            out[q + 3] = 10
            key = keys[i]
            for b in range(8):
                out[q + 4 + b] = np.uint8((key >> np.uint64(8 * b)) & np.uint64(255))
            out[q + 12] = 13
            out[q + 13] = 10
            out[q + 14] = 36
            value = length
            for b in range(n):
                out[q + 14 + n - b] = np.uint8(48 + value % 10)
                value //= 10
            out[p - 2] = 13
            out[p - 1] = 10
            out[p + length] = 13
            out[p + length + 1] = 10
        copy(out, p, headers[i], 0, HEADER_BYTES)
        p += HEADER_BYTES
        copy(out, p, vectors[i], 0, vectors.shape[1])
        p += vectors.shape[1]
        copy(out, p, state[i], 0, state.shape[1])
        p += state.shape[1]
        copy(out, p, entries, entries_from, entries_size)
        p += entries_size
        copy(out, p, ids, id_bounds[i], id_size)


@njit(types.void(_READ_U64, types.uint8[::1]), cache=True, nogil=True)
def encode_fields(keys: U64, out: U8) -> None:
    """keys (n,) as RESP bulk strings of 8 little-endian bytes: the argument list of HMGET or HDEL. out (14·n,)."""
    p = 0
    for i in range(keys.shape[0]):
        key = keys[i]
        out[p] = 36
        out[p + 1] = 56
        out[p + 2] = 13
        out[p + 3] = 10
        for b in range(8):
            out[p + 4 + b] = np.uint8((key >> np.uint64(8 * b)) & np.uint64(255))
        out[p + 12] = 13
        out[p + 13] = 10
        p += FIELD_FRAME


@njit(types.void(_READ_U8, _READ_I64, _READ_U8, _READ_I64, _READ_I64, types.boolean[::1]), cache=True, nogil=True)
def same_bytes(one: U8, one_at: I64, other: U8, other_at: I64, lengths: I64, out: Bool) -> None:
    """out[i] = whether the lengths[i] bytes of `one` from one_at[i] on are those of `other` from other_at[i] on."""
    for i in range(lengths.shape[0]):
        same = True
        for b in range(lengths[i]):
            if one[one_at[i] + b] != other[other_at[i] + b]:
                same = False
                break
        out[i] = same
