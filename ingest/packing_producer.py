"""Many events in a record: read as a trainer would read them, packed by the partition of their user, sent."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import numpy as np

from ingest import codecs
from ingest.codecs import Records
from ingest.columns import MAX_LINES
from ingest.fetched import Values
from ingest.packing import Packer, PackLimits
from ingest.producer import EventProducer
from ingest.settings import IngestSettings
from native.features import NO_FEATURES, FeatureSchema
from native.partitioner import partitions_of


class Unfit(NamedTuple):
    """An event that a trainer would send to the dead letters."""

    row: int
    reason: str


@dataclass(slots=True)
class PackingCounters:
    """What was sent since the start."""

    events: int = 0
    records: int = 0
    refused: int = 0


class PackingProducer:
    """Sends events, each checked at the trainer's own door first, in records of many. Not thread-safe.

    Events of one user go to the partition of the user's key, in the order in which they came; so do features of one
    item, to the partition of the item's. Records are in the format that `ingest.codec` names: JSON lines, or an array
    in MessagePack. What waits longer than the linger goes out with the next `send_due`.
    """

    def __init__(
        self,
        producer: EventProducer,
        ingest: IngestSettings,
        features: FeatureSchema = NO_FEATURES,
        limits: PackLimits | None = None,
    ) -> None:
        self._producer = producer
        self._pack: Callable[[Sequence[bytes]], bytes] = b"\n".join if ingest.codec == "json" else _as_array
        self._door = codecs.of(ingest.model_copy(update={"codec": "json"}), features)
        self._packer = Packer(limits or PackLimits())
        self.counters = PackingCounters()

    def send(self, events: Sequence[bytes], *, up_to_unfit: bool) -> list[Unfit]:
        """Take n events in JSON; returns those that can't be used, in order. Raises StreamUnavailable.

        up_to_unfit: send only what comes before the first of them; else all the others.
        """
        now_ms = time.time_ns() // 1_000_000
        n = len(events)
        rows = np.arange(n, dtype=np.int64)
        decoded = self._door.decode(
            Records(np.zeros(n, np.uint32), rows, np.full(n, now_ms, np.int64), Values.of(events)), now_ms
        )
        unfit = sorted(Unfit(refusal.record, refusal.reason) for refusal in decoded.refusals)
        # a line feed in an event can't be: a record would hold two. So every row has one event, or one refusal
        ids = [(decoded.events.place, decoded.events.user_id)]
        if decoded.profiles is not None:
            ids.append((decoded.profiles.place, decoded.profiles.id))
        partition = np.full(n, -1, np.int64)
        for place, names in ids:
            partition[place // MAX_LINES] = partitions_of(names.data, names.offsets, self._producer.partitions)
        if up_to_unfit and unfit:
            partition[unfit[0].row :] = -1
        now_s = time.monotonic()
        for number in np.unique(partition[partition >= 0]).tolist():
            own = [events[i] for i in np.flatnonzero(partition == number).tolist()]
            for pack in self._packer.add(number, own, now_s):
                self._send(number, pack)
        self.counters.refused += len(unfit)
        return unfit

    def wait_s(self) -> float | None:
        """Until something is due; None: nothing waits."""
        return self._packer.wait_s(time.monotonic())

    def send_due(self) -> None:
        """Send what has waited long enough."""
        for partition, events in self._packer.due(time.monotonic()):
            self._send(partition, events)

    def flush(self) -> None:
        """Return once everything is acknowledged. Raises StreamUnavailable, StreamMisconfigured."""
        for partition, events in self._packer.rest():
            self._send(partition, events)
        self._producer.flush()

    def _send(self, partition: int, events: Sequence[bytes]) -> None:
        self._producer.send_raw(self._pack(events), partition=partition)
        self.counters.events += len(events)
        self.counters.records += 1


def _as_array(events: Sequence[bytes]) -> bytes:
    return msgspec.msgpack.encode([msgspec.json.decode(event) for event in events])
