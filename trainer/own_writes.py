"""Read your writes: rows as the store will answer once this worker's pending gradients are applied.

What the store would do with them is what `embedding_store.merge` does: the pure core that every backend calls. Here it
is called on rows that were read, for those keys alone that have something pending, and nothing is written.

Equal to the store's answer after the flush, if nobody else writes meanwhile: bit for bit, or within float32 rounding
where the table is regularized (decay in two stretches rounds once more). What `lookup` does not show can't be foreseen:
how often a key that is not admitted yet was counted (it reads as not admitted), that a key was evicted or forgotten (a
gradient alone seems to make a row of it), which rows this flush will evict. Nor is a `staleness_correction`, which is
decided at the flush.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from embedding_store.contract import I64, U64, EmbeddingStore, Flush, Histories, OwnEvents, Rows
from embedding_store.decay import clocks_of, decay, decays
from embedding_store.flush_parts import by_shard, parts_of
from embedding_store.merge import merge
from embedding_store.records import Records, byte_rows
from embedding_store.spec import TableSpec
from native.key_index import KeyIndex
from native.rows import HEADER, HEADER_BYTES, encode_records, place_records
from trainer.pending import Pending

_STEADY_TRIES = 4


class OwnWrites:
    """`lookup` with the pending of one worker laid over the store's rows. Never writes."""

    def __init__(self, store: EmbeddingStore, pending: Pending) -> None:
        self._store, self._pending = store, pending
        self._flushes: dict[str, Flush] = {}
        self._made_of = -1

    def lookup(self, table: str, keys: U64, *, with_state: bool = False, with_ids: bool = True) -> Rows:
        """As `EmbeddingStore.lookup` after the flush. keys (n,), unique. Raises StoreUnavailable."""
        if not self._pending.batches:
            return self._store.lookup(table, keys, with_state=with_state, with_ids=with_ids)
        spec = self._store.spec(table)
        rows, clocks = self._read(spec, keys, with_ids)
        events = self._pending.events
        flush = self._flush(table)
        index = KeyIndex(max(16, len(flush.keys)))
        index.add(flush.keys)
        number = index.find(keys)
        mine = np.flatnonzero(number >= 0)
        merged = _merged(spec, rows, keys, mine, _only(flush, number[mine]), clocks)
        if decays(spec):  # the flush moves the clock for every row
            others = np.ones(len(keys), np.bool_)
            others[mine] = False
            now = clocks_of(keys, clocks)
            decay(spec, merged.vectors, now, now + events, merged.found & others)
        return merged if with_state else replace(merged, state=None)

    def histories_and_rows(
        self, sequences: str, table: str, keys: U64, *, with_state: bool = False
    ) -> tuple[Histories, Rows]:
        """As `EmbeddingStore.histories_and_rows`: entries as they are stored, rows as after the flush."""
        if not self._pending.batches:
            return self._store.histories_and_rows(sequences, table, keys, with_state=with_state)
        rows = self.lookup(table, keys, with_state=with_state, with_ids=False)
        return self._store.histories(sequences, keys), rows

    def _read(self, spec: TableSpec, keys: U64, with_ids: bool) -> tuple[Rows, tuple[int, ...]]:
        """Rows with state, and the clocks of the shards that they are as of."""
        clocks = self._clocks(spec.name)
        for _ in range(_STEADY_TRIES):
            rows = self._store.lookup(spec.name, keys, with_state=True, with_ids=with_ids)
            if not decays(spec):  # only decay asks which clock a row was read at
                break
            now = self._clocks(spec.name)
            if now == clocks:
                break
            clocks = now
        return rows, clocks

    def _clocks(self, table: str) -> tuple[int, ...]:
        return tuple(status.clock for status in self._store.status(table))

    def _flush(self, table: str) -> Flush:
        if self._pending.version != self._made_of:
            self._flushes, self._made_of = {}, self._pending.version
        if table not in self._flushes:
            starts = {p: start for p, (start, _) in self._pending.ranges.items()}
            self._flushes[table] = self._pending.flush(table, 0, starts, 0)
        return self._flushes[table]


def _merged(spec: TableSpec, rows: Rows, keys: U64, mine: I64, flush: Flush, clocks: tuple[int, ...]) -> Rows:
    """The rows with those at `mine` (m,) as `flush`, of exactly their keys in that order, leaves them."""
    out = replace(
        rows,
        vectors=rows.vectors.copy(),
        found=rows.found.copy(),
        clock=rows.clock.copy(),
        count=rows.count.copy(),
        last_seen=rows.last_seen.copy(),
        gap=rows.gap.copy(),
        popularity=rows.popularity.copy(),
        state=None if rows.state is None else rows.state.copy(),
    )
    order, starts = by_shard(keys[mine], spec.shards)
    for shard, part in enumerate(parts_of(spec, flush)):
        at = mine[order[starts[shard] : starts[shard + 1]]]
        if not len(at):
            continue
        stored = _records(rows, keys, at, clocks[shard])
        merged = merge(spec, part, stored, clocks[shard] + flush.events, 0)
        row = merged.written & ~merged.bare
        to, h = at[row], merged.block.headers[row]
        out.vectors[to] = merged.block.vectors[row]
        if out.state is not None:
            out.state[to] = merged.block.state[row]
        out.found[to] = True
        out.clock[to], out.count[to], out.last_seen[to] = h["clock"], h["count"], h["last_seen"]
        out.gap[to], out.popularity[to] = h["gap"], h["popularity"]
    return out


def _records(rows: Rows, keys: U64, at: I64, clock: int) -> Records:
    """Rows `at` (m,) as they are stored, decayed up to `clock`."""
    if rows.state is None:
        raise AssertionError("rows were read without state")
    found = rows.found[at]
    at = at[found]
    n = len(at)
    headers = np.zeros(n, HEADER)
    for name in ("count", "updated_ms", "last_seen", "gap", "popularity", "check"):
        headers[name] = getattr(rows, name)[at]
    headers["clock"] = np.maximum(clock, rows.clock[at])
    ids = rows.ids.take(at)
    headers["id_len"] = ids.lengths
    vectors, state = np.ascontiguousarray(rows.vectors[at]), np.ascontiguousarray(rows.state[at])
    lengths = HEADER_BYTES + 4 * (vectors.shape[1] + state.shape[1]) + ids.lengths
    starts = np.empty(n, np.int64)
    data = np.empty(place_records(lengths, False, starts), np.uint8)
    encode_records(
        np.arange(n), keys[at], byte_rows(headers.reshape(-1, 1)), byte_rows(vectors), byte_rows(state),
        np.zeros(0, np.uint8), np.zeros(n + 1, np.int64), ids.data, ids.offsets, False, starts, data,
    )  # fmt: skip
    return Records(found, np.append(starts, len(data)), data)


def _only(flush: Flush, rows: I64) -> Flush:
    """The flush of a table without appends with rows (m,) alone, in that order."""
    own = flush.own_events
    if own is not None:
        place = np.full(len(flush.keys), -1, np.int64)
        place[rows] = np.arange(len(rows))
        kept = np.flatnonzero(place[own.rows] >= 0)
        own = OwnEvents(place[own.rows[kept]], own.orders[kept], own.positives[kept])
    return replace(
        flush,
        keys=flush.keys[rows],
        counts=flush.counts[rows],
        positives=flush.positives[rows],
        checks=flush.checks[rows],
        ids=flush.ids.take(rows),
        gradients=None if flush.gradients is None else flush.gradients[rows],
        state_deltas=None if flush.state_deltas is None else flush.state_deltas[rows],
        own_events=own,
    )
