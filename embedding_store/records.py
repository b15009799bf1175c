"""From stored records to columns. Pure; the bytes themselves are described in `native.rows`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from embedding_store.contract import ENTRY, F32, I64, ORDER, U64, Bool, Histories, Orders, Rows, Values
from embedding_store.errors import StoreMisconfigured
from embedding_store.optimizers import initial_state
from embedding_store.orders import NO_TIME
from embedding_store.spec import TableSpec
from native.initial import fill_missing
from native.ragged import Ragged
from native.rows import (
    BARE,
    ENTRY_BYTES,
    FENCED,
    HEADER,
    ORDER_BYTES,
    SIZE,
    decode_headers,
    gather_fixed,
    gather_ragged,
)

U8 = npt.NDArray[np.uint8]

FENCE = np.dtype([("time_ms", "<i8"), ("place", "<i8"), ("clock", "<i8"), ("partition", "<u4"), ("unused", "<u4")])
"""Where an id was forgotten: the tombstone's order, and the shard's clock then. Own events before it don't count."""


@dataclass(frozen=True, slots=True)
class Records:
    """n stored rows, the found ones end to end: record k is `data[bounds[k]:bounds[k + 1]]`."""

    found: Bool  # (n,)
    bounds: I64  # (found + 1,)
    data: U8

    @classmethod
    def of(cls, replies: Sequence[bytes | None]) -> Records:
        """From one bytes or None per key, without a Python loop over rows: a record is never empty."""
        present = list(filter(None, replies))
        bounds = np.zeros(len(present) + 1, np.int64)
        np.cumsum(np.fromiter(map(len, present), np.int64, len(present)), out=bounds[1:])
        if len(present) == len(replies):
            found = np.ones(len(replies), np.bool_)
        else:
            found = np.fromiter(map(bool, replies), np.bool_, len(replies))
        return cls(found, bounds, np.frombuffer(b"".join(present), np.uint8))

    def keep(self, chosen: Bool) -> Records:
        """The same n replies with those of the others missing. chosen (n,)."""
        kept = chosen[self.found]
        part = gather(self.data, self.bounds[:-1], kept, np.where(kept, np.diff(self.bounds), 0))
        return Records(self.found & chosen, np.concatenate([part.offsets[:1], part.offsets[1:][kept]]), part.data)


@dataclass(frozen=True, slots=True)
class Block:
    """Columns of n rows, stored or initial; arrays are the caller's to change."""

    headers: npt.NDArray[np.void]  # (n,) of dtype HEADER, without flags; zeros where there is no row
    found: Bool  # (n,) there is a row
    vectors: F32  # (n, dim); the initial vector where there is no row
    state: F32  # (n, state_dim); the initial state likewise; (n, 0) if not asked for
    entries: I64  # (e, 4) words of entries, see native.sequences
    entry_bounds: I64  # (n + 1,)
    data: U8  # the records
    id_at: I64  # (n,) where each id lies in `data`; its length is in the header
    stored: npt.NDArray[np.void]  # (n,) headers of whatever is stored, rows or not, with flags
    values: Ragged  # n values of a record table
    orders: Orders  # (n,) their places in time; (0,) for other tables

    def fences(self) -> npt.NDArray[np.void]:
        """(n,) of dtype FENCE, zeros for rows without one."""
        fenced = (self.stored["entries"] & FENCED) != 0
        fences = np.zeros(len(fenced), FENCE)
        at = self.id_at + np.where(self.found, self.stored["id_len"], 0)
        gather_fixed(self.data, at, fenced, 0, byte_rows(fences.reshape(-1, 1)))
        return fences

    def at(self, rows: I64) -> Block:
        """Columns of some rows, without entries and values. rows (m,): m may be any number, the result has m rows."""
        bounds = np.zeros(len(rows) + 1, np.int64)
        return Block(
            headers=self.headers[rows],
            found=self.found[rows],
            vectors=self.vectors[rows],
            state=self.state[rows],
            entries=self.entries[:0],
            entry_bounds=bounds,
            data=self.data,
            id_at=self.id_at[rows],
            stored=self.stored[rows],
            values=Ragged(bounds, np.zeros(0, np.uint8)),
            orders=self.orders[:0],
        )

    def ids(self) -> Ragged:
        """n stored ids, empty where there is none."""
        return gather(self.data, self.id_at, self.found, self.headers["id_len"].astype(np.int64))


def byte_rows(array: npt.NDArray[np.generic]) -> U8:
    """(n, k) of any dtype as (n, k·itemsize) bytes, the same memory."""
    return array.view(np.uint8).reshape(len(array), array.shape[1] * array.itemsize)


def decode(spec: TableSpec, keys: U64, records: Records, order: I64 | None = None, *, with_state: bool = True) -> Block:
    """Columns of `keys` (n,). Pure.

    order (n,): the row of `keys` that each record reply belongs to, where replies came shard by shard; None: the same.
    Raises StoreMisconfigured for a record that can't be one of this table's.
    """
    n = len(keys)
    found = records.found
    rows = np.flatnonzero(found) if order is None else order[found]
    if order is not None:
        found = np.empty(n, np.bool_)
        found[order] = records.found
    headers = np.zeros(n, HEADER)
    body_at = np.zeros(n, np.int64)
    id_at = np.zeros(n, np.int64)
    body, unit = _body(spec)
    raw = byte_rows(headers.reshape(n, 1))
    wrong = decode_headers(records.data, records.bounds, body, unit, rows, raw, body_at, id_at)
    if wrong >= 0:
        raise StoreMisconfigured(
            f"row {int(keys[rows[wrong]])} of table '{spec.name}' is not a record of this table "
            f"({int(np.diff(records.bounds)[wrong])} bytes); something else writes to its keys"
        )
    stored = headers
    if (headers["entries"] > SIZE).any():
        stored = headers.copy()
        bare = (stored["entries"] & BARE) != 0
        found = found & ~bare
        headers[bare] = 0
        headers["entries"] &= SIZE
    entries, entry_bounds = np.zeros((0, 4), np.int64), np.zeros(n + 1, np.int64)
    values, orders = Ragged(entry_bounds, np.zeros(0, np.uint8)), np.zeros(0, ORDER)
    if spec.kind in ("sequence", "record"):
        lengths = headers["entries"].astype(np.int64)
        if spec.kind == "sequence":
            entries, entry_bounds = _entries(records.data, body_at, found, lengths)
        else:
            orders = np.zeros(n, ORDER)
            orders["time_ms"] = NO_TIME
            gather_fixed(records.data, body_at, found, 0, byte_rows(orders.reshape(n, 1)))
            values = gather(records.data, body_at + ORDER_BYTES, found, lengths)
        empty = np.zeros((n, 0), np.float32)
        return Block(headers, found, empty, empty, entries, entry_bounds, records.data, id_at, stored, values, orders)
    vectors = np.empty((n, spec.dim), np.float32)
    gather_fixed(records.data, body_at, found, 0, byte_rows(vectors))
    state = np.zeros((n, spec.state_dim if with_state else 0), np.float32)
    if state.shape[1]:
        gather_fixed(records.data, body_at, found, 4 * spec.dim, byte_rows(state))
    if not found.all():
        fill_missing(spec.seed, spec.initial_std, keys, found, vectors)
        if state.shape[1] and (initial := initial_state(spec.optimizer)):
            state[~found] = initial
    return Block(headers, found, vectors, state, entries, entry_bounds, records.data, id_at, stored, values, orders)


def _body(spec: TableSpec) -> tuple[int, int]:
    """(bytes of a body, bytes more for each of the header's entries)."""
    if spec.kind == "sequence":
        return 0, ENTRY_BYTES
    if spec.kind == "record":
        return ORDER_BYTES, 1
    return 4 * (spec.dim + spec.state_dim), 0


def rows_of(block: Block, *, with_state: bool = False, with_ids: bool = True) -> Rows:
    """The reply of `lookup`."""
    h = block.headers
    return Rows(
        vectors=block.vectors,
        found=block.found,
        clock=h["clock"].copy(),
        count=h["count"].copy(),
        updated_ms=h["updated_ms"].copy(),
        last_seen=h["last_seen"].copy(),
        gap=h["gap"].copy(),
        popularity=h["popularity"].copy(),
        check=h["check"].copy(),
        ids=block.ids() if with_ids else Ragged(np.zeros(len(h) + 1, np.int64), np.zeros(0, np.uint8)),
        state=block.state if with_state else None,
    )


def histories_of(block: Block) -> Histories:
    """The reply of `histories`."""
    h = block.headers
    return Histories(
        offsets=block.entry_bounds,
        entries=block.entries.reshape(-1).view(ENTRY),
        found=block.found,
        clock=h["clock"].copy(),
        count=h["count"].copy(),
        updated_ms=h["updated_ms"].copy(),
    )


def values_of(block: Block) -> Values:
    """The reply of `values`."""
    h = block.headers
    return Values(
        values=block.values,
        orders=block.orders,
        found=block.found,
        clock=h["clock"].copy(),
        count=h["count"].copy(),
        updated_ms=h["updated_ms"].copy(),
        ids=block.ids(),
    )


def _entries(data: U8, at: I64, found: Bool, lengths: I64) -> tuple[I64, I64]:
    raw = gather(data, at, found, ENTRY_BYTES * lengths)
    return raw.data.view(np.int64).reshape(-1, 4), raw.offsets // ENTRY_BYTES


def gather(data: U8, at: I64, chosen: Bool, lengths: I64) -> Ragged:
    """n byte strings of lengths (n,), each from data[at[i]:] where chosen[i], else empty.

    An element that is not chosen has length 0.
    """
    offsets = np.zeros(len(at) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    out = np.empty(offsets[-1], np.uint8)
    gather_ragged(data, at, chosen, offsets, out)
    return Ragged(offsets, out)
