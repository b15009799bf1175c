"""Rows of a catalogue and of users, written by the store's own client as a trainer writes them. Ids are integers."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from embedding_store.contract import ENTRY, F32, I64, EmbeddingStore, Flush, Range, ShardReply, Source
from embedding_store.model import ModelSettings
from native.ragged import Ragged

FIRST_ID = 10_000_000
"""Ids are FIRST_ID + row: eight digits each."""
_DIGITS = 8
_CALL = 16_384
_SOURCE = Source("bench-serving", 0)
_SEEN = 20
_MOST_EVENTS = 20_000


@dataclass
class World:
    """The only writer of a store's tables."""

    store: EmbeddingStore
    model: ModelSettings
    items: int = 0
    offset: int = 0

    def declare(self) -> None:
        """Tables and the published model."""
        for spec in self.model.tables().values():
            self.store.create(spec)
            for shard in range(spec.shards):
                self.store.seek(spec.name, shard, _SOURCE, None, 0, "benchmark")
        self.store.publish_model(self.model.document())

    def grow(self, items: int) -> None:
        """Up to so many items with random vectors; positive events of an item: chance ∝ 1 / rank, and at least one."""
        rng = np.random.default_rng(self.items)
        ranks = 1 + rng.permutation(items - self.items)
        for lo in range(self.items, items, _CALL):
            rows = np.arange(lo, min(items, lo + _CALL))
            events = 1 + _MOST_EVENTS // ranks[rows - self.items]
            self.update(rows, rng.normal(0, 1, (len(rows), self.model.dim)).astype(np.float32), events)
        self.items = items

    def update(self, rows: I64, gradients: F32, events: I64 | None = None) -> tuple[ShardReply, ...]:
        """Positive events (n,), or one each, of the items `rows` (n,), in one call; gradients (n, dim)."""
        counts = np.ones(len(rows), np.int64) if events is None else events
        flush = self._flush(
            rows, int(counts.sum()), counts=counts, positives=counts.astype(np.float32), gradients=gradients
        )
        return self._applied("item", flush)

    def meet(self, users: int) -> None:
        """So many users with a history of `_SEEN` items each."""
        rng = np.random.default_rng(1)
        for lo in range(0, users, _CALL):
            rows = np.arange(lo, min(users, lo + _CALL))
            appends = np.zeros(len(rows) * _SEEN, ENTRY)
            appends["time_ms"] = time.time_ns() // 1_000_000
            appends["place"] = self.offset * 65536 + np.arange(len(appends))
            appends["item"] = FIRST_ID + rng.integers(0, self.items, len(appends))
            appends["weight"] = 1.0
            counts = np.full(len(rows), _SEEN, np.int64)
            flush = self._flush(
                rows,
                len(appends),
                counts=counts,
                positives=counts.astype(np.float32),
                appends=appends,
                append_rows=np.repeat(np.arange(len(rows)), _SEEN),
            )
            self._applied("history", flush)

    def _flush(self, rows: I64, events: int, **columns: object) -> Flush:
        now_ms = time.time_ns() // 1_000_000
        start, self.offset = self.offset, self.offset + events
        digits = (rows + FIRST_ID)[:, None] // 10 ** np.arange(_DIGITS - 1, -1, -1, dtype=np.int64) % 10 + ord("0")
        common = {
            "generation": 0,
            "ranges": (Range(_SOURCE, start, self.offset),),
            "events": events,
            "event_time_ms": now_ms,
            "produced_ms": now_ms,
            "now_ms": now_ms,
            "keys": (rows + FIRST_ID).astype(np.uint64),
            "checks": np.zeros(len(rows), np.uint32),
            "ids": Ragged(np.arange(len(rows) + 1) * _DIGITS, digits.astype(np.uint8).reshape(-1)),
        }
        return Flush(**common, **columns)  # type: ignore[arg-type]

    def _applied(self, table: str, flush: Flush) -> tuple[ShardReply, ...]:
        """Tables get different events here: each follows the one line of offsets by a jump."""
        source, start, _ = flush.ranges[0]
        for shard, status in enumerate(self.store.status(table)):
            if (stands := status.offsets[source]) != start:
                self.store.seek(table, shard, source, stands, start, "benchmark")
        replies = self.store.apply(table, flush)
        if any(reply.outcome != "applied" for reply in replies):
            raise RuntimeError(f"a call of a source's only writer was not applied: {replies}")
        return replies
