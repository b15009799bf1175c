"""Where each source stands in each table, and what must be replayed so that every shard has every event once.

Shards of all tables move their offsets by themselves, so after a crash or a roll-back they may differ. The owner of a
source starts from the lowest; each higher offset is a barrier at which a flush must end, so that a shard sees a range
either whole ahead of it (`duplicate`) or starting exactly where it stands (`applied`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from embedding_store.contract import EmbeddingStore, Source
from ingest.columns import Partition
from ingest.contract import EventSource

log = logging.getLogger(__name__)


class Progress:
    """Offsets of the owned sources. Reading and seeking talk to the store; everything else is arithmetic."""

    def __init__(self, store: EmbeddingStore, stream: EventSource, tables: Iterable[str]) -> None:
        self._store, self._stream, self._tables = store, stream, tuple(tables)
        self._next: dict[str, dict[Partition, int]] = {}
        self._barriers: dict[Partition, list[int]] = {}
        self.skipped = 0

    def take(self, owned: frozenset[Partition]) -> None:
        """Read offsets of the owned partitions from every shard and continue each from its lowest.

        Unset ones are seeked: to the earliest offset where no shard knows the source, or another shard of the table
        does; else the table is new, and joins at the lowest of the others.
        Records that retention has removed are jumped over, counted and logged. Raises StoreUnavailable,
        StreamUnavailable.
        """
        self._next = {table: {} for table in self._tables}
        self._barriers = {}
        for partition in sorted(owned):
            offsets = self._settled(partition)
            low = min(offsets)
            self._barriers[partition] = sorted(o for o in set(offsets) if o > low)
            for table in self._tables:
                self._next[table][partition] = low
            self._stream.seek(partition, low)
        self._pause()

    def _settled(self, partition: Partition) -> list[int]:
        source = Source(*partition)
        earliest, end = self._stream.bounds(partition)
        stored = {
            (table, shard): status.offsets.get(source)
            for table in self._tables
            for shard, status in enumerate(self._store.status(table))
        }
        known = [o for o in stored.values() if o is not None]
        start = min(known) if known else earliest
        tables = {table for (table, _), offset in stored.items() if offset is not None}
        settled = []
        for (table, shard), offset in stored.items():
            # a table is made with all its shards: one that knows less than the others was emptied, or rolled back
            unset = earliest if table in tables else start
            goal = max(earliest, unset if offset is None else offset)
            if goal != offset:
                new = "rolled back" if table in tables else "new table" if known else "first start"
                reason = new if offset is None else "lost to retention"
                self._store.seek(table, shard, source, offset, goal, reason)
            settled.append(goal)
        if known and min(known) < earliest:
            gone = earliest - min(known)
            self.skipped += gone
            log.error(
                "%d records of %s are gone: retention removed them before they were learned; continuing at offset %d",
                gone,
                partition,
                earliest,
            )
        if max(settled) > end:
            log.warning(
                "the store is ahead of %s: offset %d of %d; waiting for the broker", partition, max(settled), end
            )
        return settled

    @property
    def replaying(self) -> bool:
        """Whether some shard is behind the others: what is read now was partly applied before."""
        return any(self._barriers.values())

    def stop_at(self) -> Mapping[Partition, int]:
        """Offsets that the next range of a partition must not cross."""
        return {p: b[0] for p, b in self._barriers.items() if b}

    def start(self, table: str) -> Mapping[Partition, int]:
        """Where the next range of each partition begins in a table."""
        return self._next[table]

    def at_barrier(self, ranges: Mapping[Partition, tuple[int, int]]) -> bool:
        """Whether one of the ranges ends where a shard is waiting: everything must be flushed now."""
        return any(self._barriers.get(p, [])[:1] == [stop] for p, (_, stop) in ranges.items())

    def applied(self, table: str, stops: Mapping[Partition, int]) -> None:
        """Every shard of the table now stands at the stops."""
        self._next[table].update(stops)

    def passed(self, stops: Mapping[Partition, int]) -> None:
        """All tables stand at the stops: barriers behind them are gone."""
        if not self.replaying:
            return
        for partition, stop in stops.items():
            self._barriers[partition] = [b for b in self._barriers[partition] if b > stop]
        self._pause()

    def moved(self) -> bool:
        """Whether some shard no longer stands where we left it: it was rolled back, or another worker writes."""
        if self.replaying:
            return False
        for table, positions in self._next.items():
            for status in self._store.status(table):
                if any(status.offsets.get(Source(*p)) != offset for p, offset in positions.items()):
                    return True
        return False

    def _pause(self) -> None:
        """While the gap of a source is replayed nothing else is read, not even another gap.

        A call that is a repeat for one of its sources and news for another would be a conflict.
        """
        behind = [p for p, b in self._barriers.items() if b]
        self._stream.pause(frozenset(self._barriers) - {behind[0]} if behind else frozenset())
