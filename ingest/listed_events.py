"""A stream that is decoded columns in memory, in an order of its own: back-tests of what was read elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ingest.columns import MAX_LINES, Events, MicroBatch, Partition, Profiles, Tombstones
from ingest.contract import AssignmentChanged, AssignmentLost
from ingest.listed import ListedSource
from ingest.settings import IngestSettings


class ListedEvents(ListedSource):
    """`EventSource` over n events in the order in which they are to be learned; offset = number of the event.

    before (p,): the number of the event that each profile comes right before; n: behind all.
    """

    def __init__(
        self,
        partition: Partition,
        events: Events,
        settings: IngestSettings,
        profiles: Profiles | None = None,
        before: np.ndarray | None = None,
    ) -> None:
        n = len(events)
        super().__init__({partition: [None] * n}, settings, 0)
        place = np.arange(n, dtype=np.int64) * MAX_LINES
        number = np.full(n, partition.number, np.uint32)
        self._partition, self._events = partition, replace(events, place=place, partition=number)
        self._profiles, self._before = None, np.zeros(0, np.int64)
        if profiles is not None and before is not None and n:
            order = np.argsort(before, kind="stable")
            self._before = np.minimum(before[order], n - 1)
            told = profiles.take(order)
            self._profiles = replace(
                told, place=self._before * MAX_LINES, partition=np.full(len(told), partition.number, np.uint32)
            )

    def poll(self, stop_at: Mapping[Partition, int]) -> MicroBatch | None:
        """The next `batch_events` events; None at the end. Raises AssignmentLost."""
        if self._lost:
            raise AssignmentLost("the assignment was taken away")
        if self._next_owned != self._owned:
            raise AssignmentChanged("partitions were given or taken")
        shares = self._shares(stop_at)
        if not shares:
            return None
        start, stop = self._position[self._partition], shares[self._partition]
        self._position[self._partition] = stop
        profiles = None
        first, last = np.searchsorted(self._before, [start, stop]).tolist()
        if self._profiles is not None and last > first:
            profiles = self._profiles.take(np.arange(first, last))
        events, none = self._events.take(np.arange(start, stop)), Tombstones.of()
        return MicroBatch(events, {self._partition: (start, stop)}, none, none, 0, profiles)
