"""Rows as the module tells them, the bytes of native/redis_module/core/shard.h, and the columns they are. Pure.

Columns are views of the reply where one reply answers all keys, so they are not copied on the way from the socket.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from embedding_store.contract import F32, I64, ORDER, U64
from embedding_store.errors import StoreMisconfigured
from embedding_store.records import U8, Block, gather
from embedding_store.spec import TableSpec
from embedding_store.standing import ROW, STUB, Standings
from native.ragged import Ragged
from native.rows import ENTRY_BYTES, HEADER, HEADER_BYTES, ORDER_BYTES, scatter_rows

VERSION = 1
WITH_STATE, STORED, WITH_KEYS, WITHOUT_IDS = 1, 2, 4, 8
"""Flags: optimizer state; vectors as stored, not decayed; keys; ids are left out."""

HEAD = struct.Struct("<2I4q4IQ")
"""version, flags, clock, feed, event_time_ms, produced_ms, n, dim, state_dim, unused, tail_size."""


@dataclass(frozen=True, slots=True)
class RowsReply:
    """One reply's columns, views of its bytes."""

    clock: int  # the shard's, when the rows were read; likewise the following
    feed: int
    event_time_ms: int
    produced_ms: int
    keys: U64  # (n,); (0,) if not asked for
    records: npt.NDArray[np.void]  # (n,) of dtype HEADER: of rows and stubs, else zeros
    vectors: F32  # (n, dim)
    state: F32  # (n, state_dim); (n, 0) if not asked for
    places: npt.NDArray[np.void]  # (n,) of dtype ORDER; (0,) but for record tables
    entries: U8  # of sequences, end to end by `records`
    standings: Standings  # (n,)
    values: U8  # of record tables, likewise
    ids: U8  # of rows, likewise

    def __len__(self) -> int:
        return len(self.standings)


def parse_rows(spec: TableSpec, blob: U8, n: int | None, flags: int) -> RowsReply:
    """The reply to n keys (None: however many) asked for with `flags`.

    Raises StoreMisconfigured for a reply of another format or table, or one whose parts don't fit its length.
    """
    if len(blob) < HEAD.size:
        raise _unfit(spec, f"{len(blob)} bytes where {HEAD.size} make the head")
    version, told, clock, feed, event_time_ms, produced_ms, rows, dim, told_state, _, tail_size = HEAD.unpack_from(
        blob.data
    )
    if version != VERSION:
        raise _unfit(spec, f"format version {version}, this release reads {VERSION}")
    state_dim = spec.state_dim if flags & WITH_STATE else 0
    if (told, dim) != (flags, spec.dim) or (state_dim and told_state != state_dim):
        raise _unfit(
            spec,
            f"flags {told}, dim {dim} and state_dim {told_state}, asked for {flags}, {spec.dim} and {state_dim}",
        )
    if n is not None and rows != n:
        raise _unfit(spec, f"{rows} rows for {n} keys")
    columns = _Columns(spec, blob)
    keys = columns.take(8 * rows if flags & WITH_KEYS else 0).view(np.uint64)
    records = columns.take(HEADER_BYTES * rows).view(HEADER)
    vectors = columns.take(4 * rows * spec.dim).view(np.float32).reshape(rows, spec.dim)
    state = columns.take(4 * rows * state_dim).view(np.float32).reshape(rows, state_dim)
    if tail_size != columns.left:
        raise _unfit(spec, f"{columns.left} bytes after the vectors where the head says {tail_size}")
    sizes = int(records["entries"].sum(dtype=np.int64)) if spec.length else 0
    places = columns.take(ORDER_BYTES * rows if spec.kind == "record" else 0).view(ORDER)
    entries = columns.take(ENTRY_BYTES * sizes if spec.kind == "sequence" else 0)
    standings = columns.take(rows)
    values = columns.take(sizes if spec.kind == "record" else 0)
    ids = columns.take(int(records["id_len"].sum(dtype=np.int64)))
    if columns.left:
        raise _unfit(spec, f"{columns.left} bytes after the ids")
    return RowsReply(
        clock, feed, event_time_ms, produced_ms, keys, records, vectors, state, places, entries, standings, values, ids
    )


def block_of(
    spec: TableSpec, replies: Sequence[RowsReply], order: I64 | None = None, *, with_state: bool = False
) -> tuple[Block, Standings]:
    """Columns of all replies' rows, and how their keys stand. with_state: as the replies were asked for.

    order (n,): the row of the result that each reply's row becomes, replies one after another; None: that same order.
    """
    if len(replies) == 1:
        reply = replies[0]
        if order is None or _in_order(order):
            return _block(spec, reply.records, reply.standings, reply.vectors, reply.state, reply.places, replies, None)
    n = sum(map(len, replies))
    if order is None:
        order = np.arange(n)
    records = np.zeros(n, HEADER)
    standings = np.zeros(n, np.uint8)
    vectors = np.empty((n, spec.dim), np.float32)
    state = np.empty((n, spec.state_dim if with_state else 0), np.float32)
    places = np.zeros(n if spec.kind == "record" else 0, ORDER)
    at = 0
    for reply in replies:
        rows = order[at : at + len(reply)]
        at += len(reply)
        standings[rows] = reply.standings
        scatter_rows(_bytes(reply.records), rows, _bytes(records))
        if spec.dim:
            scatter_rows(_bytes(reply.vectors), rows, _bytes(vectors))
        if state.shape[1]:
            scatter_rows(_bytes(reply.state), rows, _bytes(state))
        if len(places):
            scatter_rows(_bytes(reply.places), rows, _bytes(places))
    return _block(spec, records, standings, vectors, state, places, replies, order)


def _block(
    spec: TableSpec,
    stored: npt.NDArray[np.void],
    standings: Standings,
    vectors: F32,
    state: F32,
    places: npt.NDArray[np.void],
    replies: Sequence[RowsReply],
    order: I64 | None,
) -> tuple[Block, Standings]:
    n = len(standings)
    found = standings == ROW
    headers = stored
    if (standings == STUB).any():
        headers = stored.copy()
        headers[~found] = np.zeros(1, HEADER)
    sizes = headers["entries"].astype(np.int64)
    entries, entry_bounds = np.zeros((0, 4), np.int64), np.zeros(n + 1, np.int64)
    values = Ragged(entry_bounds, np.zeros(0, np.uint8))
    if spec.kind == "sequence":
        raw = _ragged([reply.entries for reply in replies], ENTRY_BYTES * sizes, order)
        entries, entry_bounds = raw.data.view(np.int64).reshape(-1, 4), raw.offsets // ENTRY_BYTES
    elif spec.kind == "record":
        values = _ragged([reply.values for reply in replies], sizes, order)
    ids = [reply.ids for reply in replies]
    data = ids[0] if len(ids) == 1 else np.concatenate([np.zeros(0, np.uint8), *ids])
    id_at = _starts(headers["id_len"].astype(np.int64), order) if len(data) else np.zeros(n, np.int64)
    block = Block(headers, found, vectors, state, entries, entry_bounds, data, id_at, stored, values, places)
    return block, standings


def _starts(lengths: I64, order: I64 | None) -> I64:
    """(n,) where each row's bytes begin in the replies' end to end."""
    in_turn = lengths if order is None else lengths[order]
    starts = np.cumsum(in_turn) - in_turn
    if order is None:
        return starts
    out = np.empty_like(starts)
    out[order] = starts
    return out


def _ragged(parts: Sequence[U8], lengths: I64, order: I64 | None) -> Ragged:
    if order is None and len(parts) == 1:
        offsets = np.zeros(len(lengths) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        return Ragged(offsets, parts[0])
    data = np.concatenate([np.zeros(0, np.uint8), *parts])
    return gather(data, _starts(lengths, order), lengths > 0, lengths)


class _Columns:
    """A blob's bytes behind its head, column by column."""

    def __init__(self, spec: TableSpec, blob: U8) -> None:
        self._spec, self._rest = spec, blob[HEAD.size :]

    @property
    def left(self) -> int:
        return len(self._rest)

    def take(self, size: int) -> U8:
        if size > len(self._rest):
            raise _unfit(self._spec, f"a column of {size} bytes where {self.left} are left")
        column, self._rest = self._rest[:size], self._rest[size:]
        return column


def _in_order(order: I64) -> bool:
    return len(order) == 0 or (order[0] == 0 and bool((np.diff(order) == 1).all()))


def _bytes(rows: npt.NDArray[np.generic]) -> U8:
    """(n, bytes of a row), the same memory."""
    width = rows.itemsize * (rows.shape[1] if rows.ndim > 1 else 1)
    return rows.view(np.uint8).reshape(len(rows), width)


def _unfit(spec: TableSpec, fault: str) -> StoreMisconfigured:
    return StoreMisconfigured(
        f"the server's rows of table '{spec.name}' have {fault}: module and client are of releases that don't fit"
    )
