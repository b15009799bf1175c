"""The truth: what the topic holds, read from its beginning by a plain consumer, decoded by the standard library."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from kafka import KafkaConsumer, TopicPartition

from ingest.kafka_client import client_options
from ingest.settings import KafkaSettings
from native.identity import canonical, fnv1a_32, key_and_check
from tests.chaos.stream import NUMBER, Acknowledged, Produced
from tests.chaos.waiting import until

_POLL_MS = 200
EVENT = np.dtype(
    [
        ("partition", "<u4"),
        ("place", "<i8"),
        ("time_ms", "<i8"),
        ("user", "<u8"),
        ("item", "<u8"),
        ("label", "<f4"),
        ("weight", "<f4"),
    ]
)
"""A usable event. place = record offset · 2^16 + line."""


FEATURES = {"item": "genre", "user": "plan"}
"""What events and profiles tell of ids of a side. The names are those of `Plan.config`."""


class Told(NamedTuple):
    """What a record table has to hold of an id, unless something newer was told."""

    order: tuple[int, int, int]  # time, partition, place
    value: bytes


@dataclass(frozen=True)
class TopicLog:
    """Usable events by (partition, place); `ends`: offset behind the last record of each partition."""

    events: npt.NDArray[np.void]  # (n,) of dtype EVENT
    unusable: frozenset[Acknowledged]
    records: Mapping[Acknowledged, int]  # its number in the stream
    values: Mapping[Acknowledged, bytes]
    ends: Mapping[int, int]
    ids: Mapping[int, bytes]  # key → id
    told: Mapping[str, Mapping[int, list[Told]]] = field(default_factory=dict)  # side → key → as the log has it

    def against(self, sent: list[Produced], acknowledged: Mapping[int, Acknowledged]) -> list[str]:
        """Where the log is not what the producer was told: a fault of broker or producer, not of the trainers."""
        wrong = [
            f"record {number} was acknowledged at {place} and is not there"
            for number, place in acknowledged.items()
            if self.records.get(place) != number or self.values[place] != sent[number].value
        ]
        seen: dict[int, Acknowledged] = {}
        for place, number in self.records.items():
            if number in seen:
                wrong.append(f"record {number} is in the log twice, at {seen[number]} and {place}")
            seen[number] = place
        return wrong


def read_log(settings: KafkaSettings) -> TopicLog:
    """The whole topic."""
    columns, unusable, records, values, ids = [], set(), {}, {}, {}
    ends: dict[int, int] = {}
    told: dict[str, dict[int, list[Told]]] = {"item": {}, "user": {}}
    for record in _records(settings, settings.topic, ends):
        place = Acknowledged(record.partition, record.offset)
        records[place] = int(dict(record.headers)[NUMBER])
        values[place] = record.value
        for line, text in enumerate(record.value.split(b"\n")):
            try:
                event = json.loads(text)
            except ValueError:
                unusable.add(place)
                continue
            at = (record.partition, (record.offset << 16) + line, event["timestamp"])
            keys = {}
            for side in ("user", "item"):
                if f"{side}_id" not in event:
                    continue
                identity = canonical(event[f"{side}_id"])
                keys[side] = key = key_and_check(identity)[0]
                ids[key] = identity
                value = _stored(FEATURES[side], event.get("features", {}))
                if value or "label" not in event:  # a profile may also take away what was said
                    told[side].setdefault(key, []).append(Told((at[2], at[0], at[1]), value))
            if "label" in event:
                columns.append((*at, keys["user"], keys["item"], event["label"], event["weight"]))
    events = np.sort(np.array(columns, EVENT), order=("partition", "place"))
    return TopicLog(events, frozenset(unusable), records, values, ends, ids, told)


def _stored(name: str, features: Mapping[str, Any]) -> bytes:
    """The record of one feature's values: key of each value's row, then FNV-1a of the feature's name."""
    given = features.get(name)
    values = given if isinstance(given, list) else [] if given is None else [given]
    return b"".join(
        struct.pack("<QI", key_and_check(f"{name}={value}".encode())[0], fnv1a_32(name.encode())) for value in values
    )


def read_dead_letters(settings: KafkaSettings) -> frozenset[Acknowledged]:
    """Places that the dead letters tell of."""
    letters = (dict(letter.headers) for letter in _records(settings, settings.dead_letter_topic, {}))
    return frozenset(Acknowledged(int(h["partition"]), int(h["offset"])) for h in letters)


def _records(settings: KafkaSettings, topic: str, ends: dict[int, int]) -> Iterator[Any]:
    consumer = KafkaConsumer(**client_options(settings), isolation_level="read_committed", enable_auto_commit=False)
    try:
        numbers = until(lambda: consumer.partitions_for_topic(topic), f"partitions of {topic}")
        partitions = [TopicPartition(topic, number) for number in sorted(numbers)]
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        ends |= {tp.partition: end for tp, end in consumer.end_offsets(partitions).items()}
        while any(consumer.position(tp) < ends[tp.partition] for tp in partitions):
            for found in consumer.poll(timeout_ms=_POLL_MS).values():
                yield from found
    finally:
        consumer.close()
