"""Where the newest records of the event topic name an id: read as a trainer reads them, by nobody's group."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from kafka import KafkaConsumer, TopicPartition

from ingest.batch_reader import BatchReader
from ingest.columns import MAX_LINES, MicroBatch, Partition
from ingest.dead_letters import DeadLetter
from ingest.fetched import Fetched
from ingest.kafka_batches import PartitionBatches
from ingest.kafka_client import client_options, connect, translated
from ingest.settings import IngestSettings, KafkaSettings
from ingest.topic_bounds import topic_bounds
from native.features import NO_FEATURES, FeatureSchema


@dataclass(frozen=True, slots=True)
class Sighting:
    """A record, or a line of one, that names the id."""

    partition: int
    offset: int
    time_ms: int  # of the event
    produced_ms: int
    label: float  # of an event; 0 otherwise
    refused: str  # why it went to the dead letters, else empty
    tombstone: bool


@dataclass(frozen=True, slots=True)
class Found:
    """The topic as it is now, and what its newest records say of an id, oldest first."""

    bounds: dict[Partition, tuple[int, int]]  # (earliest offset kept, end)
    searched: dict[Partition, tuple[int, int]]  # [from, to) of what was read
    sightings: tuple[Sighting, ...]


def search(
    kafka: KafkaSettings,
    ingest: IngestSettings,
    tower: str,
    identity: bytes,
    key: int,
    *,
    newest: int,
    timeout_s: float,
    features: FeatureSchema = NO_FEATURES,
) -> Found:
    """Read up to `newest` records of each partition, for `timeout_s` at most; `searched` says how far it came.

    identity: the canonical id, key its key. Raises StreamUnavailable, StreamMisconfigured.
    """
    doing = f"searching the topic {kafka.topic}"
    options = client_options(kafka) | {"isolation_level": "read_committed", "allow_auto_create_topics": False}
    letters: list[DeadLetter] = []
    reader = BatchReader(kafka.topic, ingest, letters.append, features)
    consumer = connect(KafkaConsumer, options | {"enable_auto_commit": False}, doing, kafka)
    consumer._fetcher.PartitionRecords = PartitionBatches
    try:
        with translated(doing, kafka):
            found = topic_bounds(consumer, kafka)
            names, first, last = found.names, found.first, found.last
            starts = {place: max(first[place], last[place] - newest) for place in names}
            sightings, reached = _read(consumer, starts, last, reader, letters, (tower, identity, key), timeout_s)
    finally:
        consumer.close()
    return Found(
        {name: (first[place], last[place]) for place, name in names.items()},
        {name: (starts[place], reached[place]) for place, name in names.items()},
        tuple(sorted(sightings, key=lambda one: (one.produced_ms, one.partition, one.offset))),
    )


def _read(
    consumer: Any,
    starts: dict[TopicPartition, int],
    stops: dict[TopicPartition, int],
    reader: BatchReader,
    letters: list[DeadLetter],
    wanted: tuple[str, bytes, int],
    timeout_s: float,
) -> tuple[list[Sighting], dict[TopicPartition, int]]:
    """`reader` adds what it refuses to `letters`."""
    consumer.assign(list(starts))
    for place, start in starts.items():
        consumer.seek(place, start)
    sightings: list[Sighting] = []
    reached = dict(starts)
    deadline = time.monotonic() + timeout_s
    while any(reached[place] < stops[place] for place in stops) and time.monotonic() < deadline:
        polled = consumer.poll(timeout_ms=200)
        taken = [(place.partition, chunks) for place, chunks in polled.items()]
        batch = reader.read(taken, {}, time.time_ns() // 1_000_000)
        sightings += _of_batch(batch, *wanted) + _of_letters(letters, taken, wanted[1])
        letters.clear()
        reached = {place: consumer.position(place) for place in stops}
    return sightings, reached


def _of_batch(batch: MicroBatch, tower: str, identity: bytes, key: int) -> list[Sighting]:
    events = batch.events
    keys, ids = (events.user_key, events.user_id) if tower == "user" else (events.item_key, events.item_id)
    found = []
    for row in np.flatnonzero(keys == np.uint64(key)).tolist():
        if ids.at(row) != identity:  # another text with the same key
            continue
        offset = int(events.place[row]) // MAX_LINES
        times = int(events.time_ms[row]), int(events.produced_ms[row])
        found.append(
            Sighting(int(events.partition[row]), offset, *times, float(events.label[row]), "", tombstone=False)
        )
    forgets = batch.forget_users if tower == "user" else batch.forget_items
    for row in np.flatnonzero(forgets.keys == np.uint64(key)).tolist():
        time_ms = int(forgets.time_ms[row])
        place = int(forgets.partition[row]), int(forgets.place[row]) // MAX_LINES
        found.append(Sighting(*place, time_ms, time_ms, 0.0, "", tombstone=True))
    return found


def _of_letters(letters: list[DeadLetter], taken: list[tuple[int, list[Fetched]]], identity: bytes) -> list[Sighting]:
    """Refused ones can't be decoded for sure: those whose bytes hold the id."""
    if not letters:
        return []
    times = {
        (number, offset): time_ms
        for number, chunks in taken
        for chunk in chunks
        for offset, time_ms in zip(chunk.offset.tolist(), chunk.time_ms.tolist(), strict=True)
    }
    return [
        Sighting(one.partition, one.offset, 0, times[one.partition, one.offset], 0.0, one.reason, tombstone=False)
        for one in letters
        if one.value is not None and identity in one.value
    ]
