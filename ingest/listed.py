"""A stream that is a list of records in memory: back-tests, and tests that crash and resume."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import numpy as np

from ingest import codecs
from ingest.codecs import Records
from ingest.columns import MicroBatch, Partition, Tombstones
from ingest.contract import AssignmentChanged, AssignmentLost
from ingest.fetched import Values
from ingest.settings import IngestSettings
from native.features import NO_FEATURES, FeatureSchema


class ListedSource:
    """`EventSource` over record values per partition; offset = place in the list. Delivers by count, never waits.

    A micro-batch takes as evenly from the partitions as they have records. All of the records are there from the start:
    the end offset is the length. None is an offset without a record: a transaction's marker, or an aborted record.
    Record timestamps are `produced_ms`, or the wall clock at construction.
    """

    def __init__(
        self,
        records: Mapping[Partition, Sequence[bytes | None]],
        settings: IngestSettings | None = None,
        produced_ms: int | None = None,
        features: FeatureSchema = NO_FEATURES,
    ) -> None:
        self._records = {p: list(values) for p, values in records.items()}
        self._settings = settings or IngestSettings()
        self._codec = codecs.of(self._settings, features)
        self._produced_ms = time.time_ns() // 1_000_000 if produced_ms is None else produced_ms
        self._position = dict.fromkeys(self._records, 0)
        self._paused: frozenset[Partition] = frozenset()
        self._owned = self._next_owned = frozenset(self._records)
        self._lost = False
        self.committed: dict[Partition, int] = {}
        self.dead: list[tuple[Partition, int, str]] = []
        self.quarantined: list[tuple[dict[Partition, tuple[int, int]], str]] = []

    def assignment(self, timeout_s: float) -> frozenset[Partition]:  # noqa: ARG002 - nothing to wait for
        """All partitions, or those that `change` named; accepts what `lose` and `change` announced."""
        self._lost = False
        self._owned = self._next_owned
        return self._owned

    def lose(self) -> None:
        """Announce a rebalance: the next poll raises AssignmentLost."""
        self._lost = True

    def change(self, owned: frozenset[Partition]) -> None:
        """Announce that partitions are given or taken: the next poll raises AssignmentChanged."""
        self._next_owned = owned

    @property
    def exhausted(self) -> bool:
        """Whether everything was delivered."""
        return all(self._position[p] >= len(self._records[p]) for p in self._owned)

    def bounds(self, partition: Partition) -> tuple[int, int]:
        """(0, number of records)."""
        return 0, len(self._records[partition])

    def seek(self, partition: Partition, offset: int) -> None:
        """Continue from `offset`."""
        self._position[partition] = offset

    def pause(self, partitions: frozenset[Partition]) -> None:
        """Deliver nothing of exactly these."""
        self._paused = partitions

    def poll(self, stop_at: Mapping[Partition, int]) -> MicroBatch | None:
        """The next `batch_events` records, a fair share of each partition; None at the end. Raises AssignmentLost."""
        if self._lost:
            raise AssignmentLost("the assignment was taken away")
        if self._next_owned != self._owned:
            raise AssignmentChanged("partitions were given or taken")
        ranges = {}
        number: list[int] = []
        offset: list[int] = []
        values: list[bytes] = []
        for partition, stop in self._shares(stop_at).items():
            start, records = self._position[partition], self._records[partition]
            ranges[partition] = (start, stop)
            self._position[partition] = stop
            for at in range(start, stop):
                if (value := records[at]) is not None:
                    number.append(partition.number)
                    offset.append(at)
                    values.append(value)
        if not ranges:
            return None
        columns = Records(
            np.array(number, np.uint32),
            np.array(offset, np.int64),
            np.full(len(values), self._produced_ms, np.int64),
            Values.of(values),
        )
        decoded = self._codec.decode(columns, time.time_ns() // 1_000_000)
        by_number = {p.number: p for p in self._records}
        for refusal in decoded.refusals:
            place = (by_number[number[refusal.record]], offset[refusal.record], refusal.reason)
            self.dead.append(place)
        none = Tombstones.of()
        return MicroBatch(decoded.events, ranges, none, none, len(decoded.refusals), decoded.profiles)

    def _shares(self, stop_at: Mapping[Partition, int]) -> dict[Partition, int]:
        """Where each partition's part of the next micro-batch ends; those with the least left are served first."""
        served = [p for p in self._records if p in self._owned and p not in self._paused]
        limits = {p: min(stop_at.get(p, len(self._records[p])), len(self._records[p])) for p in served}
        waiting = {p: n for p, limit in limits.items() if (n := limit - self._position[p]) > 0}
        left, shares = self._settings.batch_events, {}
        for number, partition in enumerate(sorted(waiting, key=lambda p: (waiting[p], p))):
            taken = min(waiting[partition], left // (len(waiting) - number))
            left -= taken
            if taken:
                shares[partition] = self._position[partition] + taken
        return {p: shares[p] for p in self._records if p in shares}

    def stay(self, timeout_s: float) -> None:
        """Let the time pass."""
        time.sleep(timeout_s)

    def dead_letter(self, batch: MicroBatch, rows: list[int], reason: str) -> None:
        """Keep (partition number's partition, offset, reason)."""
        by_number = {p.number: p for p in self._records}
        for row in rows:
            number, place = int(batch.events.partition[row]), int(batch.events.place[row])
            self.dead.append((by_number[number], place >> 16, reason))

    def quarantine(self, batch: MicroBatch, reason: str) -> None:
        """Keep (ranges, reason)."""
        self.quarantined.append((dict(batch.ranges), reason))

    def flush_dead_letters(self) -> None:
        """Nothing is in flight."""

    def commit(self, positions: Mapping[Partition, int]) -> None:
        """Remember the positions."""
        self.committed.update(positions)

    def lag(self) -> int:
        """Records not delivered yet."""
        return sum(len(self._records[p]) - self._position[p] for p in self._owned)

    def close(self) -> None:
        """Nothing to release."""
