"""The in-process backend: the reference that the others are held to, and the store of back-tests."""

from __future__ import annotations

import heapq
import threading
import time
import uuid
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from embedding_store import exclusions
from embedding_store.admission import taken_by_others
from embedding_store.change_set import change_set, positions, reaches_back
from embedding_store.contract import (
    I64,
    U32,
    U64,
    Bool,
    Changes,
    Cursor,
    Flush,
    Histories,
    Range,
    Rows,
    ShardReply,
    ShardStatus,
    Source,
    Values,
)
from embedding_store.decay import decay_read
from embedding_store.declarations import check_same
from embedding_store.errors import UnknownTable
from embedding_store.eviction import INDEXES, Head, head_lengths, leaving, settle
from embedding_store.flush_parts import Part, by_shard, parts_of
from embedding_store.merge import merge
from embedding_store.records import Block, Records, decode, histories_of, rows_of, values_of
from embedding_store.shard import ShardMeta, advance, feed_length, judge, jump, raised, stamp
from embedding_store.spec import TableSpec
from embedding_store.standing import standings
from embedding_store.validation import checked_flush, checked_identities, checked_keys, checked_seek, checked_watch
from native.ragged import Ragged


@dataclass(slots=True)
class _Index:
    """Keys by (score, bytes of the key); see `embedding_store.eviction`. A heap in which moved keys are left behind."""

    scores: dict[int, int] = field(default_factory=dict)
    heap: list[tuple[int, bytes, int]] = field(default_factory=list)

    def add(self, keys: U64, scores: I64) -> None:
        for key, score in zip(keys.tolist(), scores.tolist(), strict=True):
            self.scores[key] = score
            heapq.heappush(self.heap, (score, key.to_bytes(8, "little"), key))
        if len(self.heap) > 64 + 2 * len(self.scores):
            self.heap = [(score, key.to_bytes(8, "little"), key) for key, score in self.scores.items()]
            heapq.heapify(self.heap)

    def remove(self, keys: U64) -> None:
        for key in keys.tolist():
            self.scores.pop(key, None)

    def head(self, n: int) -> Head:
        first: list[tuple[int, bytes, int]] = []
        while self.heap and len(first) < n:
            entry = heapq.heappop(self.heap)
            if self.scores.get(entry[2]) == entry[0] and (not first or first[-1] != entry):
                first.append(entry)
        for entry in first:
            heapq.heappush(self.heap, entry)
        return Head(
            np.array([key for _, _, key in first], np.uint64),
            np.array([score for score, _, _ in first], np.int64),
            len(self.scores),
        )


@dataclass(slots=True)
class _Shard:
    meta: ShardMeta
    rows: dict[int, bytes] = field(default_factory=dict)  # key → record
    feed: deque[tuple[int, U64]] = field(default_factory=deque)  # (number, changed keys), oldest first
    indexes: dict[str, _Index] = field(default_factory=lambda: {name: _Index() for name in INDEXES})

    def read(self, keys: U64) -> list[bytes | None]:
        return list(map(self.rows.get, keys.tolist()))

    def status(self) -> ShardStatus:
        stubs, *marks = (len(self.indexes[name].scores) for name in ("stubs", "evicted", "forgotten"))
        return self.meta.status(len(self.rows), stubs, sum(marks))


@dataclass(slots=True)
class _Table:
    spec: TableSpec
    shards: list[_Shard]


class MemoryStore:
    """`EmbeddingStore` in this process. Thread-safe: one lock, held for the length of a call."""

    def __init__(self) -> None:
        self._tables: dict[str, _Table] = {}
        self._changed = threading.Condition(threading.RLock())
        self._run_id = uuid.uuid4().hex
        self._generation = 0
        self._model: bytes | None = None
        self._excluded: tuple[Range, ...] = ()

    def create(self, spec: TableSpec) -> None:
        """As the contract says."""
        with self._changed:
            table = self._tables.get(spec.name)
            if table is not None:
                check_same(table.spec, spec)
                return
            meta = raised(ShardMeta(), self._generation)
            self._tables[spec.name] = _Table(spec, [_Shard(meta) for _ in range(spec.shards)])

    def spec(self, table: str) -> TableSpec:
        """As the contract says."""
        return self._table(table).spec

    def generation(self) -> int:
        """As the contract says."""
        return self._generation

    def raise_generation(self) -> int:
        """As the contract says."""
        with self._changed:
            self._generation += 1
            for table in self._tables.values():
                for shard in table.shards:
                    shard.meta = raised(shard.meta, self._generation)
                    shard.feed.clear()
            self._changed.notify_all()
            return self._generation

    def lookup(self, table: str, keys: U64, *, with_state: bool = False, with_ids: bool = True) -> Rows:
        """As the contract says."""
        t = self._table(table)
        block = self._read(t, checked_keys(t.spec, keys, "lookup"), with_state=with_state)
        return rows_of(block, with_state=with_state, with_ids=with_ids)

    def histories(self, table: str, keys: U64) -> Histories:
        """As the contract says."""
        t = self._table(table)
        return histories_of(self._read(t, checked_keys(t.spec, keys, "histories"), with_state=False))

    def histories_and_rows(
        self, sequences: str, table: str, keys: U64, *, with_state: bool = False
    ) -> tuple[Histories, Rows]:
        """As the contract says."""
        return self.histories(sequences, keys), self.lookup(table, keys, with_state=with_state, with_ids=False)

    def values(self, table: str, keys: U64) -> Values:
        """As the contract says."""
        t = self._table(table)
        return values_of(self._read(t, checked_keys(t.spec, keys, "values"), with_state=False))

    def taken(self, table: str, keys: U64, checks: U32, ids: Ragged) -> Bool:
        """As the contract says."""
        t = self._table(table)
        keys, checks, ids = checked_identities(t.spec, keys, checks, ids)
        block = self._read(t, keys, with_state=False)
        return taken_by_others(block, standings(block), checks, ids)

    def apply(self, table: str, flush: Flush) -> tuple[ShardReply, ...]:
        """As the contract says; here the whole call is atomic, not only each shard."""
        t = self._table(table)
        flush = checked_flush(t.spec, flush)
        parts = parts_of(t.spec, flush)
        with self._changed:
            outcomes = [judge(s.meta, flush, f"shard {i} of table '{table}'") for i, s in enumerate(t.shards)]
            for shard, part, outcome in zip(t.shards, parts, outcomes, strict=True):
                if outcome == "applied":
                    _apply(t.spec, shard, part, flush)
            self._changed.notify_all()
            return tuple(s.meta.reply(o, flush) for s, o in zip(t.shards, outcomes, strict=True))

    def apply_all(self, flushes: Mapping[str, Flush]) -> dict[str, tuple[ShardReply, ...]]:
        """As the contract says; one table after another."""
        checked = {table: checked_flush(self.spec(table), flush) for table, flush in flushes.items()}
        return {table: self.apply(table, flush) for table, flush in checked.items()}

    def seek(self, table: str, shard: int, source: Source, expected: int | None, new: int, reason: str) -> None:
        """As the contract says."""
        t = self._table(table)
        checked_seek(t.spec, shard, source, new, reason)
        with self._changed:
            s = t.shards[shard]
            s.meta = jump(s.meta, source, expected, new, reason, f"shard {shard} of table '{table}'")

    def status(self, table: str) -> tuple[ShardStatus, ...]:
        """As the contract says."""
        t = self._table(table)
        with self._changed:
            return tuple(s.status() for s in t.shards)

    def changes(self, table: str, cursor: Cursor | None) -> Changes:
        """As the contract says."""
        t = self._table(table)
        with self._changed:
            metas = [s.meta for s in t.shards]
            at = positions(t.spec, self._run_id, cursor)
            if at is None or not all(
                reaches_back(p, s.feed[0][0] if s.feed else None, s.meta.feed)
                for p, s in zip(at, t.shards, strict=True)
            ):
                keys = np.array(list(chain.from_iterable(s.rows for s in t.shards)), np.uint64)
                records = list(chain.from_iterable(s.rows.values() for s in t.shards))
                block = decode(t.spec, keys, Records.of(records), with_state=False)
                return change_set(t.spec, self._run_id, metas, keys, block, rescan=True)
            named = [
                np.unique(np.concatenate([np.zeros(0, np.uint64), *(keys for number, keys in s.feed if number > p)]))
                for p, s in zip(at, t.shards, strict=True)
            ]
            stored = list(chain.from_iterable(s.read(k) for s, k in zip(t.shards, named, strict=True)))
            keys = np.concatenate(named)
            block = decode(t.spec, keys, Records.of(stored), with_state=False)
            return change_set(t.spec, self._run_id, metas, keys, block, rescan=False)

    def wait_for_changes(self, tables: Sequence[str], cursors: Sequence[Cursor], timeout_s: float) -> bool:
        """As the contract says."""
        checked_watch(tables, cursors)
        watched = [(self._table(name), cursor) for name, cursor in zip(tables, cursors, strict=True)]
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while not any(self._moved(t, cursor) for t, cursor in watched):
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    return False
                self._changed.wait(remaining)
            return True

    def run_id(self) -> str:
        """As the contract says."""
        return self._run_id

    def publish_model(self, document: bytes) -> None:
        """As the contract says."""
        self._model = bytes(document)

    def published_model(self) -> bytes | None:
        """As the contract says."""
        return self._model

    def exclude(self, ranges: Sequence[Range]) -> None:
        """As the contract says."""
        self._excluded = exclusions.joined(ranges)

    def excluded(self) -> tuple[Range, ...]:
        """As the contract says."""
        return self._excluded

    def close(self) -> None:
        """Nothing to release."""

    def _table(self, name: str) -> _Table:
        table = self._tables.get(name)
        if table is None:
            raise UnknownTable(f"no table '{name}' in this store; create() it first")
        return table

    def _read(self, t: _Table, keys: U64, *, with_state: bool) -> Block:
        order, starts = by_shard(keys, t.spec.shards)
        with self._changed:
            parts = (s.read(keys[order[starts[i] : starts[i + 1]]]) for i, s in enumerate(t.shards))
            replies = list(chain.from_iterable(parts))
            clocks = [s.meta.clock for s in t.shards]
        block = decode(t.spec, keys, Records.of(replies), order, with_state=with_state)
        decay_read(t.spec, block, keys, clocks)
        return block

    def _moved(self, t: _Table, cursor: Cursor) -> bool:
        at = positions(t.spec, self._run_id, cursor)
        return at is None or any(s.meta.feed != p for s, p in zip(t.shards, at, strict=True))


def _apply(spec: TableSpec, shard: _Shard, part: Part, flush: Flush) -> None:
    clock, now_ms = shard.meta.clock + flush.events, stamp(spec, shard.meta, flush)
    merged = merge(spec, part, Records.of(shard.read(part.keys)), clock, now_ms)
    heads = {name: shard.indexes[name].head(n) for name, n in head_lengths(spec, part).items()}
    going = leaving(spec, merged, heads, clock, now_ms)
    if going.longer:
        heads |= {name: shard.indexes[name].head(n) for name, n in going.longer.items()}
        going = leaving(spec, merged, heads, clock, now_ms)
    settled = settle(spec, merged, going, Records.of(shard.read(going.outside(merged))), clock, now_ms)
    keys, records = settled.merged.records()
    shard.rows.update(zip(keys, records, strict=True))
    shard.rows.update(settled.marks)
    for key in settled.gone.tolist():
        shard.rows.pop(key, None)
    for name, left in settled.leaves.items():
        shard.indexes[name].remove(left)
    for name, (joined, scores) in settled.joins.items():
        shard.indexes[name].add(joined, scores)
    changed = settled.changed
    shard.meta = advance(shard.meta, flush, settled)
    if len(changed):
        shard.feed.append((shard.meta.feed, changed))
        while len(shard.feed) > feed_length(len(changed)):
            shard.feed.popleft()
