"""Fetched records that no micro-batch holds yet, and the cutting of micro-batches. Pure: no Kafka, no clock.

For every partition: start ≤ offsets of the waiting records < position. `start` is where the next range begins, which is
where the last one stopped; `position` is the consumer's, past everything fetched (transaction markers leave holes).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol


class Record(Protocol):
    """What is read of a Kafka record."""

    @property
    def offset(self) -> int: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...


class _Waiting:
    """One partition."""

    __slots__ = ("position", "records", "start")

    def __init__(self, offset: int) -> None:
        self.start = offset
        self.position = offset
        self.records: list[Record] = []


class Backlog:
    """All partitions. `count` says about how many events a record value holds."""

    def __init__(self, count: Callable[[bytes], int]) -> None:
        self._count = count
        self._waiting: dict[int, _Waiting] = {}
        self._turn = 0

    def clear(self) -> None:
        self._waiting.clear()

    def place(self, number: int, offset: int) -> None:
        """The partition's next range starts at `offset`; what waited is dropped."""
        self._waiting[number] = _Waiting(offset)

    def drop(self, number: int) -> None:
        """The partition is somebody else's: nothing of it waits any more."""
        del self._waiting[number]

    def start(self, number: int) -> int:
        """Where the partition's next range starts."""
        return self._waiting[number].start

    def position(self, number: int) -> int:
        """Past everything fetched of the partition."""
        return self._waiting[number].position

    def waiting(self, number: int) -> int:
        """Records of the partition that wait."""
        return len(self._waiting[number].records)

    def add(self, number: int, records: Sequence[Record], position: int) -> bool:
        """Records fetched next, and the consumer's position after them. False, and no change, if it jumped back."""
        waiting = self._waiting[number]
        if position < waiting.position or (records and records[0].offset < waiting.position):
            return False
        waiting.records.extend(records)
        waiting.position = position
        return True

    def cut(self, limit: int, stop_at: Mapping[int, int], paused: frozenset[int]) -> Cut:
        """Begin a micro-batch of about `limit` events that touches no paused partition and crosses no `stop_at`."""
        numbers = sorted(n for n in self._waiting if n not in paused)
        if numbers:  # a busy partition must not starve those behind it
            self._turn = (self._turn + 1) % len(numbers)
            numbers = numbers[self._turn :] + numbers[: self._turn]
        return Cut({n: self._waiting[n] for n in numbers}, self._count, limit, stop_at)


class Cut:
    """A micro-batch being gathered. Nothing leaves the backlog before `take`; dropping the cut changes nothing."""

    def __init__(
        self, waiting: dict[int, _Waiting], count: Callable[[bytes], int], limit: int, stop_at: Mapping[int, int]
    ) -> None:
        self._waiting = waiting
        self._count = count
        self._limit = limit
        self._stop_at = stop_at
        self._taken = dict.fromkeys(waiting, 0)
        self.events = 0  # about
        self.closed = False

    def fill(self) -> None:
        """Take in what waits, up to the limit or right behind a tombstone."""
        for number, waiting in self._waiting.items():
            if self.closed:
                return
            self._fill_from(number, waiting)

    def _fill_from(self, number: int, waiting: _Waiting) -> None:
        stop = self._stop_at.get(number)
        for record in waiting.records[self._taken[number] :]:
            if stop is not None and record.offset >= stop:
                return
            n = 1 if record.value is None else self._count(record.value)
            if self.events and self.events + n > self._limit:
                self.closed = True
                return
            self.events += n
            self._taken[number] += 1
            # whether its key is a good one or not: a null value ends the batch, so that forgetting keeps its place
            if self.events >= self._limit or record.value is None:
                self.closed = True
                return

    def wants(self, number: int) -> bool:
        """Whether more of the partition could go in: not paused, and not at its stop."""
        if number not in self._waiting:
            return False
        stop = self._stop_at.get(number)
        return stop is None or self._waiting[number].position < stop

    @property
    def finished(self) -> bool:
        """Whether nothing that may still be fetched could go in."""
        return self.closed or not any(self.wants(number) for number in self._waiting)

    def take(self) -> tuple[list[tuple[int, Sequence[Record]]], dict[int, tuple[int, int]]]:
        """Remove the batch: its records by partition, in ascending order, and the range [start, stop) of each.

        The stop is the next record's offset if one waits, else the position; never past `stop_at`. A range may hold no
        record at all: markers and aborted transactions.
        """
        records: list[tuple[int, Sequence[Record]]] = []
        ranges = {}
        for number in sorted(self._waiting):
            waiting, taken = self._waiting[number], self._taken[number]
            stop = waiting.records[taken].offset if taken < len(waiting.records) else waiting.position
            stop = min(stop, self._stop_at.get(number, stop))
            if stop <= waiting.start:
                continue
            ranges[number] = (waiting.start, stop)
            if taken:
                records.append((number, waiting.records[:taken]))
                del waiting.records[:taken]
            waiting.start = stop
        return records, ranges
