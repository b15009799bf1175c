"""Sending events: for the demo, benchmarks and tests, and an example of a good producer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import msgspec
from kafka import KafkaProducer
from kafka.partitioner.default import murmur2

from ingest.contract import StreamUnavailable
from ingest.dead_letters import producer_options
from ingest.kafka_client import connect, translate, translated
from ingest.settings import KafkaSettings

_MAX_UNCHECKED = 10_000


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """One interaction. Defaults are left out on the wire."""

    user_id: str | int
    item_id: str | int
    label: float = 1
    weight: float = 1
    timestamp: int | str | None = None  # ms since the epoch or ISO 8601; default: the record's


class EventProducer:
    """Sends events keyed by user id, so that one user's events stay in order in one partition. Not thread-safe.

    Acknowledged by all in-sync replicas, and idempotent: retries neither lose nor double a record. An error of delivery
    is raised by a later `send` or by `flush`.
    """

    def __init__(self, settings: KafkaSettings) -> None:
        """Connect. Raises StreamUnavailable, StreamMisconfigured."""
        self._settings = settings
        self._encode = msgspec.json.Encoder().encode
        self._unchecked: list[Any] = []
        self._producer = connect(KafkaProducer, producer_options(settings), "connecting a producer", settings)
        with translated("connecting a producer", settings):
            self._partitions = len(self._producer.partitions_for(settings.topic) or ())
        if self._partitions == 0:
            self.close()
            raise StreamUnavailable(f"topic {settings.topic!r} is not there (yet) at {settings.bootstrap_servers}")

    def send(self, *events: Event, timestamp_ms: int | None = None) -> None:
        """One record per event; returns once they are queued."""
        for event in events:
            self.send_raw(self._encode(event), key_of(event.user_id), timestamp_ms=timestamp_ms)

    def send_lines(self, events: Iterable[Event], per_record: int = 100, timestamp_ms: int | None = None) -> None:
        """Up to `per_record` events in a record, as JSON lines; each goes to the partition of its user's key.

        Ten times cheaper for producer, broker and consumer than a record per event. Order is kept within a partition.
        """
        waiting: defaultdict[int, list[bytes]] = defaultdict(list)
        for event in events:
            partition = self.partition_of(event.user_id)
            lines = waiting[partition]
            lines.append(self._encode(event))
            if len(lines) >= per_record:
                self.send_raw(b"\n".join(lines), partition=partition, timestamp_ms=timestamp_ms)
                lines.clear()
        for partition, lines in waiting.items():
            if lines:
                self.send_raw(b"\n".join(lines), partition=partition, timestamp_ms=timestamp_ms)

    def forget_user(self, user_id: str | int) -> None:
        """A tombstone, in the partition of the user's events."""
        self.send_raw(None, f"user:{user_id}".encode(), partition=self.partition_of(user_id))

    def forget_item(self, item_id: str | int) -> None:
        """A tombstone; goes to the partition that its key hashes to."""
        self.send_raw(None, f"item:{item_id}".encode())

    def send_raw(
        self,
        value: bytes | None,
        key: bytes | None = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> None:
        """Any record, good or bad."""
        with translated(f"sending to {self._settings.topic}", self._settings):
            future = self._producer.send(
                self._settings.topic, value=value, key=key, partition=partition, timestamp_ms=timestamp_ms
            )
        self._unchecked.append(future)
        if len(self._unchecked) >= _MAX_UNCHECKED:
            self._check()

    @property
    def partitions(self) -> int:
        """Of the topic, when this was made."""
        return self._partitions

    def partition_of(self, user_id: str | int) -> int:
        """Where the events of a user go: what Kafka's default partitioner makes of the key."""
        return int(murmur2(key_of(user_id)) & 0x7FFFFFFF) % self._partitions

    def flush(self, timeout_s: float = 30.0) -> None:
        """Return once everything sent is acknowledged. Raises StreamUnavailable, StreamMisconfigured."""
        with translated(f"flushing {self._settings.topic}", self._settings):
            self._producer.flush(timeout=timeout_s)
        self._check()

    def close(self, timeout_s: float = 10.0) -> None:
        """Send what is queued, within the time, and disconnect. Idempotent."""
        with translated(f"closing the producer of {self._settings.topic}", self._settings):
            self._producer.close(timeout=timeout_s)

    def __enter__(self) -> EventProducer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check(self) -> None:
        """Raise the first error among deliveries that are done."""
        done = [future for future in self._unchecked if future.is_done]
        self._unchecked = [future for future in self._unchecked if not future.is_done]
        for future in done:
            if future.failed():
                raise translate(future.exception, f"delivering to {self._settings.topic}", self._settings)


def key_of(user_id: str | int) -> bytes:
    """Record key of a user's events."""
    return str(user_id).encode()
