"""From stored records to columns. Pure; the bytes themselves are described in `native.rows`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from embedding_store.contract import ENTRY, F32, I64, U64, Bool, Histories, Rows
from embedding_store.errors import StoreMisconfigured
from embedding_store.optimizers import initial_state
from embedding_store.spec import TableSpec
from native.initial import fill_missing
from native.ragged import Ragged
from native.rows import ENTRY_BYTES, HEADER, HEADER_BYTES, decode_headers, gather_fixed, gather_ragged

U8 = npt.NDArray[np.uint8]


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


@dataclass(frozen=True, slots=True)
class Block:
    """Columns of n rows, stored or initial; arrays are the caller's to change."""

    headers: npt.NDArray[np.void]  # (n,) of dtype HEADER; zeros where missing
    found: Bool  # (n,)
    vectors: F32  # (n, dim); the initial vector where missing
    state: F32  # (n, state_dim); the initial state where missing; (n, 0) if not asked for
    entries: I64  # (e, 4) words of entries, see native.sequences
    entry_bounds: I64  # (n + 1,)
    data: U8  # the records
    id_at: I64  # (n,) where each id lies in `data`; its length is in the header

    def ids(self) -> Ragged:
        """n stored ids, empty where there is none."""
        return _gather(self.data, self.id_at, self.found, self.headers["id_len"].astype(np.int64))


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
    sequence = spec.kind == "sequence"
    body = -1 if sequence else 4 * (spec.dim + spec.state_dim)
    wrong = decode_headers(records.data, records.bounds, body, rows, byte_rows(headers.reshape(n, 1)), body_at)
    if wrong >= 0:
        raise StoreMisconfigured(
            f"row {int(keys[rows[wrong]])} of table '{spec.name}' is not a record of this table "
            f"({int(np.diff(records.bounds)[wrong])} bytes); something else writes to its keys"
        )
    if sequence:
        lengths = headers["entries"].astype(np.int64)
        entries, entry_bounds = _entries(records.data, body_at, found, lengths)
        empty = np.zeros((n, 0), np.float32)
        return Block(headers, found, empty, empty, entries, entry_bounds, records.data, body_at + ENTRY_BYTES * lengths)
    vectors = np.empty((n, spec.dim), np.float32)
    gather_fixed(records.data, body_at, found, 0, byte_rows(vectors))
    state = np.zeros((n, spec.state_dim if with_state else 0), np.float32)
    if state.shape[1]:
        gather_fixed(records.data, body_at, found, 4 * spec.dim, byte_rows(state))
    if len(rows) < n:
        fill_missing(spec.seed, spec.initial_std, keys, found, vectors)
        if state.shape[1] and (initial := initial_state(spec.optimizer)):
            state[~found] = initial
    none = np.zeros((0, 4), np.int64)
    return Block(headers, found, vectors, state, none, np.zeros(n + 1, np.int64), records.data, body_at + body)


def rows_of(block: Block, *, with_state: bool = False) -> Rows:
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
        ids=block.ids(),
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


def record_lengths(spec: TableSpec, entries: I64, id_lengths: I64) -> I64:
    """(n,) bytes of the records of rows with so many entries and id bytes."""
    return HEADER_BYTES + 4 * (spec.dim + spec.state_dim) + ENTRY_BYTES * entries + id_lengths


def _entries(data: U8, at: I64, found: Bool, lengths: I64) -> tuple[I64, I64]:
    raw = _gather(data, at, found, ENTRY_BYTES * lengths)
    return raw.data.view(np.int64).reshape(-1, 4), raw.offsets // ENTRY_BYTES


def _gather(data: U8, at: I64, chosen: Bool, lengths: I64) -> Ragged:
    offsets = np.zeros(len(at) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    out = np.empty(offsets[-1], np.uint8)
    gather_ragged(data, at, chosen, offsets, out)
    return Ragged(offsets, out)
