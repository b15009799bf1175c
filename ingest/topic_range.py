"""All events of a range of a topic, read in no group: nothing is committed, created or sent to the dead letters."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
from kafka import KafkaConsumer, TopicPartition

from ingest.batch_reader import BatchReader
from ingest.columns import Events, MicroBatch, Partition, Profiles, Tombstones
from ingest.contract import StreamUnavailable
from ingest.dead_letters import DeadLetter
from ingest.fetched import Fetched
from ingest.history_topic import TopicRange, offsets_of
from ingest.kafka_batches import PartitionBatches
from ingest.kafka_client import client_options, connect, translated
from ingest.settings import IngestSettings, KafkaSettings
from native import features as feature_columns
from native.features import NO_FEATURES, FeatureSchema, FeatureValues
from native.ragged import Ragged
from native.ragged import concatenate as joined_ids


def read_range(
    which: TopicRange,
    kafka: KafkaSettings,
    ingest: IngestSettings,
    features: FeatureSchema = NO_FEATURES,
    progress: Callable[[int, int], None] = lambda done, total: None,  # noqa: ARG005
) -> tuple[MicroBatch, list[DeadLetter]]:
    """One micro-batch of the whole range, partition by partition, and what in it can't be used. Held in memory.

    A range without an end goes to the end that the topic has now; the live topic is one like any other. progress: is
    told of offsets read and to be read. Raises StreamMisconfigured, StreamUnavailable, also if nothing comes for
    `kafka.request_timeout_ms`.
    """
    own = kafka.model_copy(update={"topic": which.topic})
    doing = f"reading a range of {which.topic}"
    starts, ends, _ = offsets_of(which, own)
    ranges = {p: (starts[p], end) for p, end in ends.items() if end > starts[p]}
    letters: list[DeadLetter] = []
    reader = BatchReader(which.topic, ingest, letters.append, features)
    options = client_options(own) | {"isolation_level": "read_committed", "allow_auto_create_topics": False}
    consumer = connect(KafkaConsumer, options | {"enable_auto_commit": False}, doing, own)
    consumer._fetcher.PartitionRecords = PartitionBatches
    try:
        with translated(doing, own):
            batches = list(_read(consumer, ranges, reader, own, progress)) if ranges else []
    finally:
        consumer.close()
    if not batches:
        batches = [reader.read([], {}, time.time_ns() // 1_000_000)]
    return _one(batches, ranges), letters


def _read(
    consumer: Any,
    ranges: dict[Partition, tuple[int, int]],
    reader: BatchReader,
    kafka: KafkaSettings,
    progress: Callable[[int, int], None],
) -> Any:
    places = {TopicPartition(kafka.topic, p.number): bounds for p, bounds in ranges.items()}
    consumer.assign(list(places))
    for place, (start, _) in places.items():
        consumer.seek(place, start)
    total = sum(end - start for start, end in places.values())
    reached, moved_s = {place: start for place, (start, _) in places.items()}, time.monotonic()
    while any(reached[place] < end for place, (_, end) in places.items()):
        polled = consumer.poll(timeout_ms=200)
        taken = [(place.partition, _before(chunks, places[place][1])) for place, chunks in sorted(polled.items())]
        yield reader.read(taken, {}, time.time_ns() // 1_000_000)
        now = {place: min(consumer.position(place), end) for place, (_, end) in places.items()}
        if now != reached:
            reached, moved_s = now, time.monotonic()
            progress(sum(now[place] - start for place, (start, _) in places.items()), total)
        elif time.monotonic() - moved_s > kafka.request_timeout_ms / 1000:
            raise StreamUnavailable(
                f"nothing came of {kafka.topic} for {kafka.request_timeout_ms} ms, {total} records are to be read: is "
                f"{kafka.bootstrap_servers} well?"
            )


def _before(chunks: Sequence[Fetched], end: int) -> list[Fetched]:
    return [chunk.part(0, int(np.searchsorted(chunk.offset, end))) for chunk in chunks]


def _one(batches: Sequence[MicroBatch], ranges: dict[Partition, tuple[int, int]]) -> MicroBatch:
    profiles = [batch.profiles for batch in batches if batch.profiles is not None]
    return MicroBatch(
        _joined(Events, [batch.events for batch in batches]),
        ranges,
        _joined(Tombstones, [batch.forget_users for batch in batches]),
        _joined(Tombstones, [batch.forget_items for batch in batches]),
        sum(batch.dead_letters for batch in batches),
        _joined(Profiles, profiles) if profiles else None,
    )


def _joined(kind: Any, parts: Sequence[Any]) -> Any:
    """Columns after each other."""
    columns: dict[str, Any] = {}
    for field in fields(kind):
        own = [getattr(part, field.name) for part in parts]
        if own[0] is None:
            columns[field.name] = None
        elif isinstance(own[0], Ragged):
            columns[field.name] = joined_ids(own)
        elif isinstance(own[0], FeatureValues):
            columns[field.name] = feature_columns.concatenate(own)
        else:
            columns[field.name] = np.concatenate(own)
    return kind(**columns)
