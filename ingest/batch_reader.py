"""From cut records to a micro-batch: decode, bury what can't be used, read tombstones, watch the keys. No I/O."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ingest import codecs
from ingest.codecs import Records
from ingest.columns import MAX_LINES, Events, MicroBatch, Partition, Tombstones
from ingest.dead_letters import DeadLetter
from ingest.door import shown
from ingest.fetched import Fetched, Values
from ingest.settings import IngestSettings
from native.crossings import count_crossings
from native.features import NO_FEATURES, FeatureSchema
from native.identity import key_and_check

log = logging.getLogger(__name__)

_USERS_REMEMBERED = 1 << 16
_FORGETTABLE = (b"user", b"item")


@dataclass(slots=True)
class ReadCounters:
    """What was read since the start."""

    records: int = 0
    events: int = 0
    events_with_unknown_fields: int = 0
    users_on_two_partitions: int = 0


class BatchReader:
    """Reads one topic's records. `bury` is called with every dead letter, in order."""

    def __init__(
        self,
        topic: str,
        settings: IngestSettings,
        bury: Callable[[DeadLetter], None],
        features: FeatureSchema = NO_FEATURES,
    ) -> None:
        self._topic = topic
        self._max_id_bytes = settings.max_id_bytes
        self._codec = codecs.of(settings, features)
        self._bury = bury
        self._seen_users = np.zeros(_USERS_REMEMBERED, np.uint64)
        self._seen_partitions = np.full(_USERS_REMEMBERED, 0xFFFFFFFF, np.uint32)
        self.counters = ReadCounters()

    def count(self, fetched: Fetched) -> npt.NDArray[np.int64]:
        """(n,) about how many events each record holds."""
        return self._codec.count(fetched)

    def read(
        self,
        taken: Sequence[tuple[int, Sequence[Fetched]]],
        ranges: Mapping[Partition, tuple[int, int]],
        now_ms: int,
    ) -> MicroBatch:
        """The micro-batch of those ranges; `taken` holds their records by partition number, in order."""
        forget: dict[bytes, list[tuple[int, int, int, int, int]]] = {kind: [] for kind in _FORGETTABLE}
        refused = 0
        for number, chunks in taken:
            for chunk in chunks:
                self.counters.records += len(chunk)
                for i in np.flatnonzero(chunk.value_size < 0).tolist():  # one at most: it ends the batch
                    refused += not self._read_tombstone(number, chunk, i, forget)
        columns = _records(taken)
        decoded = self._codec.decode(columns, now_ms)
        numbers, offsets = columns.partition, columns.offset
        for refusal in decoded.refusals:
            place = int(numbers[refusal.record]), int(offsets[refusal.record]), refusal.line
            self._bury(DeadLetter(self._topic, *place, refusal.kind, refusal.reason, refusal.value))
        self.counters.events += len(decoded.events)
        self.counters.events_with_unknown_fields += decoded.unknown_fields
        self._watch_users(decoded.events)
        return MicroBatch(
            decoded.events,
            ranges,
            Tombstones.of(forget[b"user"]),
            Tombstones.of(forget[b"item"]),
            refused + len(decoded.refusals),
            decoded.profiles,
        )

    def refuse(self, events: Events, rows: Sequence[int], reason: str) -> None:
        """Dead letters for events that were read but can't be stored: written anew, as their bytes are gone."""
        for row in rows:
            value = {
                "user_id": events.user_id.at(row).decode(),
                "item_id": events.item_id.at(row).decode(),
                "label": float(events.label[row]),
                "weight": float(events.weight[row]),
                "timestamp": int(events.time_ms[row]),
            }
            offset, line = divmod(int(events.place[row]), MAX_LINES)
            text = json.dumps(value, ensure_ascii=False).encode()
            self._bury(
                DeadLetter(self._topic, int(events.partition[row]), offset, line, "refused_by_store", reason, text)
            )

    def quarantine(self, batch: MicroBatch, reason: str) -> None:
        """A dead letter for each partition's range of records, without a value: its records are still in the topic."""
        for partition, (start, stop) in sorted(batch.ranges.items()):
            self._bury(DeadLetter(self._topic, partition.number, start, 0, "quarantined", reason, None, stop - 1))

    def _read_tombstone(
        self, number: int, chunk: Fetched, i: int, forget: dict[bytes, list[tuple[int, int, int, int, int]]]
    ) -> bool:
        """Whether record i of the chunk, which has a null value, says what is to be forgotten; a dead letter if not."""
        key, offset = chunk.key(i), int(chunk.offset[i])
        kind, colon, identity = (key or b"").partition(b":")
        if not colon or kind not in forget or not 1 <= len(identity) <= self._max_id_bytes:
            reason = f"a null value with key {shown(key)}; to forget an id, send key user:<id> or item:<id>"
            self._bury(DeadLetter(self._topic, number, offset, 0, "tombstone", reason, None))
            return False
        time_ms = max(0, int(chunk.time_ms[i]))  # -1: the topic's messages carry none
        forget[kind].append((*key_and_check(identity), time_ms, offset * MAX_LINES, number))
        return True

    def _watch_users(self, events: Events) -> None:
        """A user's events on two partitions have no order: say so once, and count."""
        found = count_crossings(events.user_key, events.partition, self._seen_users, self._seen_partitions)
        if found and not self.counters.users_on_two_partitions:
            log.warning(
                "topic %s has events of one user on two partitions, where their order is lost; key the records by "
                "user id (a change of the number of partitions does this once)",
                self._topic,
            )
        self.counters.users_on_two_partitions += found


def _records(taken: Sequence[tuple[int, Sequence[Fetched]]]) -> Records:
    """Records with values, in order."""
    chunks = [chunk for _, some in taken for chunk in some]
    numbers = [number for number, some in taken for _ in some]
    valued = [chunk.value_size >= 0 for chunk in chunks]
    none = np.zeros(0, np.int64)
    return Records(
        np.repeat(np.array(numbers, np.uint32), [int(some.sum()) for some in valued]),
        np.concatenate([none, *(chunk.offset[some] for chunk, some in zip(chunks, valued, strict=True))]),
        np.concatenate([none, *(chunk.time_ms[some] for chunk, some in zip(chunks, valued, strict=True))]),
        Values.joined(chunks),
    )
