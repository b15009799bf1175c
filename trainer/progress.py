"""Where each source stands in each table, and what must be replayed so that every shard has every event once.

Shards of all tables move their offsets by themselves, so after a crash or a roll-back they may differ. The owner of a
source starts from the lowest; each higher offset is a barrier at which a flush must end, so that a shard sees a range
either whole ahead of it (`duplicate`) or starting exactly where it stands (`applied`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping

from embedding_store.contract import EmbeddingStore, ShardStatus, Source
from ingest.columns import Partition
from ingest.contract import EventSource, StreamUnavailable
from trainer.offsets import Finding, OffsetPolicy, Shard, settle

log = logging.getLogger(__name__)

Statuses = Mapping[Shard, ShardStatus]


class Progress:
    """Offsets of the owned sources. Reading and seeking talk to the store; everything else is arithmetic."""

    def __init__(
        self,
        store: EmbeddingStore,
        stream: EventSource,
        tables: Iterable[str],
        policy: OffsetPolicy = OffsetPolicy(),  # noqa: B008  frozen
        confirm_truncation_s: float = 0.0,
        told: Callable[[Finding], None] = lambda finding: None,  # noqa: ARG005
    ) -> None:
        """told: called with everything that is found, after it was logged."""
        self._store, self._stream, self._tables = store, stream, tuple(tables)
        self._policy, self._told = policy, told
        self._confirm_s = confirm_truncation_s
        self._cut_since: dict[Partition, float] = {}
        self._next: dict[str, dict[Partition, int]] = {}
        self._barriers: dict[Partition, list[int]] = {}

    def take(self, owned: frozenset[Partition]) -> None:
        """Read offsets of the owned partitions from every shard and continue each from its lowest.

        What is to be done where events or offsets are gone: see `trainer.offsets`. Raises StoreUnavailable,
        StreamUnavailable (also while a log that was cut is not yet known to stay so), SeekConflict, OffsetsRefused.
        """
        self._next = {table: {} for table in self._tables}
        self._barriers = {}
        self._begin(owned)

    def change(self, owned: frozenset[Partition]) -> None:
        """Partitions were given or taken: forget the latter, `take` the former; the others stay where they are."""
        for partition in self._barriers.keys() - owned:
            del self._barriers[partition]
            for positions in self._next.values():
                del positions[partition]
        self._begin(owned - self._barriers.keys())

    def _begin(self, partitions: frozenset[Partition]) -> None:
        statuses = {
            Shard(table, number): status
            for table in (self._tables if partitions else ())
            for number, status in enumerate(self._store.status(table))
        }
        for partition in sorted(partitions):
            offsets = self._settled(partition, statuses)
            low = min(offsets)
            self._barriers[partition] = sorted(o for o in set(offsets) if o > low)
            for table in self._tables:
                self._next[table][partition] = low
            self._stream.seek(partition, low)
        self._pause()

    def _settled(self, partition: Partition, statuses: Statuses) -> list[int]:
        source = Source(*partition)
        earliest, end = self._stream.bounds(partition)
        stored = {shard: status.offsets.get(source) for shard, status in statuses.items()}
        self._confirm_cut(partition, max((o for o in stored.values() if o is not None), default=0), end)
        topics = {known.topic_id for status in statuses.values() for known in status.offsets}
        settlement = settle(
            _name(partition), stored, earliest, end, self._policy, topic_is_known=partition.topic_id in topics
        )
        for finding in settlement.findings:
            log.log(logging.ERROR if finding.alarming else logging.INFO, "%s", finding.text)
            self._told(finding)
        for (table, number), expected, new, reason in settlement.moves:
            self._store.seek(table, number, source, expected, new, reason)
        return list(settlement.offsets.values())

    def _confirm_cut(self, partition: Partition, stored: int, end: int) -> None:
        """A log that ends early may be a broker that is not yet back: wait until it has been so for some time."""
        if stored <= end:
            self._cut_since.pop(partition, None)
            return
        now = time.monotonic()
        seen_s = now - self._cut_since.setdefault(partition, now)
        if seen_s < self._confirm_s:
            raise StreamUnavailable(
                f"{_name(partition)} ends at offset {end}, and was learned up to {stored}: waiting "
                f"{self._confirm_s - seen_s:.0f} s more for the broker to have it"
            )
        del self._cut_since[partition]

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


def _name(partition: Partition) -> str:
    """For messages."""
    return f"partition {partition.number} of topic {partition.topic_id}"
