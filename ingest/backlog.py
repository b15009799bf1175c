"""Fetched records that no micro-batch holds yet, and the cutting of micro-batches. Pure: no Kafka, no clock.

For every partition: start ≤ offsets of the waiting records < position. `start` is where the next range begins, which is
where the last one stopped; `position` is the consumer's, past everything fetched (transaction markers leave holes).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from ingest.fetched import Fetched
from native.kafka_records import fit

I64 = npt.NDArray[np.int64]


class _Waiting:
    """One partition."""

    __slots__ = ("chunks", "events", "position", "start")

    def __init__(self, offset: int) -> None:
        self.start = offset
        self.position = offset
        self.chunks: list[tuple[Fetched, I64]] = []  # none without a record; events of each record, about
        self.events = 0  # in all of them, about


class Backlog:
    """All partitions. `count` says about how many events each record holds, (n,)."""

    def __init__(self, count: Callable[[Fetched], I64]) -> None:
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
        """Events of the partition that wait, about."""
        return self._waiting[number].events

    def add(self, number: int, chunks: Sequence[Fetched], position: int) -> bool:
        """Records fetched next, and the consumer's position after them. False, and no change, if it jumped back."""
        waiting = self._waiting[number]
        chunks = [chunk for chunk in chunks if len(chunk)]
        if position < waiting.position or (chunks and chunks[0].offset[0] < waiting.position):
            return False
        for chunk in chunks:
            events = np.where(chunk.value_size < 0, 1, self._count(chunk))
            waiting.chunks.append((chunk, events))
            waiting.events += int(events.sum())
        waiting.position = position
        return True

    def cut(self, limit: int, stop_at: Mapping[int, int], paused: frozenset[int]) -> Cut:
        """Begin a micro-batch of about `limit` events that touches no paused partition and crosses no `stop_at`."""
        numbers = sorted(n for n in self._waiting if n not in paused)
        if numbers:  # a busy partition must not starve those behind it
            self._turn = (self._turn + 1) % len(numbers)
            numbers = numbers[self._turn :] + numbers[: self._turn]
        return Cut({n: self._waiting[n] for n in numbers}, limit, stop_at)


class Cut:
    """A micro-batch being gathered. Nothing leaves the backlog before `take`; dropping the cut changes nothing."""

    def __init__(self, waiting: dict[int, _Waiting], limit: int, stop_at: Mapping[int, int]) -> None:
        self._waiting = waiting
        self._limit = limit
        self._stop_at = stop_at
        self._taken = dict.fromkeys(waiting, (0, 0))  # (whole chunks, records of the one behind them)
        self.events = 0  # about
        self.closed = False

    def fill(self) -> None:
        """Take in what waits, up to the limit or right behind a tombstone."""
        for number, waiting in self._waiting.items():
            if self.closed:
                return
            self._fill_from(number, waiting)

    def _fill_from(self, number: int, waiting: _Waiting) -> None:
        stop = self._stop_at.get(number, -1)
        whole, part = self._taken[number]
        while whole < len(waiting.chunks) and not self.closed:
            chunk, events = waiting.chunks[whole]
            # a null value ends the batch, whether its key is a good one or not: so forgetting keeps its place
            n, self.events, self.closed = fit(
                chunk.offset, chunk.value_size, events, part, stop, self.events, self._limit
            )
            part += n
            if part < len(chunk):
                break
            whole, part = whole + 1, 0
        self._taken[number] = whole, part

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

    def take(self) -> tuple[list[tuple[int, Sequence[Fetched]]], dict[int, tuple[int, int]]]:
        """Remove the batch: its records by partition, in ascending order, and the range [start, stop) of each.

        The stop is the next record's offset if one waits, else the position; never past `stop_at`. A range may hold no
        record at all: markers and aborted transactions.
        """
        taken: list[tuple[int, Sequence[Fetched]]] = []
        ranges = {}
        for number in sorted(self._waiting):
            waiting, (whole, part) = self._waiting[number], self._taken[number]
            stop = int(waiting.chunks[whole][0].offset[part]) if whole < len(waiting.chunks) else waiting.position
            stop = min(stop, self._stop_at.get(number, stop))
            if stop <= waiting.start:
                continue
            ranges[number] = (waiting.start, stop)
            chunks = waiting.chunks[:whole]
            del waiting.chunks[:whole]
            if part:
                chunk, events = waiting.chunks[0]
                chunks.append((chunk.part(0, part), events[:part]))
                waiting.chunks[0] = chunk.part(part, len(chunk)), events[part:]
            if chunks:
                taken.append((number, [chunk for chunk, _ in chunks]))
                waiting.events -= sum(int(events.sum()) for _, events in chunks)
            waiting.start = stop
        return taken, ranges
