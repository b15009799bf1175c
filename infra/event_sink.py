"""Events that came over HTTP, into Kafka: what `towline serve` hands to the service."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from ingest.contract import IngestError
from ingest.door import Door, Unusable
from ingest.producer import EventProducer, key_of
from ingest.settings import IngestSettings, KafkaSettings
from native.features import NO_FEATURES, FeatureSchema
from serving.errors import EventRefused, StreamAway
from serving.ranking_schemas import Interaction

_PATIENCE_MS = 5_000  # for the broker: a client waits for the answer
_PAUSE_S = 1.0  # after a failure: requests that waited behind it need not wait as long again


class KafkaEventSink:
    """`EventSink` over the event topic, by the rules of a trainer's own door. Connects at the first event."""

    def __init__(self, kafka: KafkaSettings, ingest: IngestSettings, features: FeatureSchema = NO_FEATURES) -> None:
        patience_ms = min(_PATIENCE_MS, kafka.request_timeout_ms)
        self._kafka = kafka.model_copy(update={"request_timeout_ms": patience_ms})
        self._door = Door.of(ingest, features)
        self._encode: Callable[[Any], bytes] = msgspec.json.encode if ingest.codec == "json" else msgspec.msgpack.encode
        self._producer: EventProducer | None = None
        self._paused_until_s = 0.0

    def produce(self, events: Sequence[Interaction]) -> None:
        """See `EventSink`. Events without a time have that of their record."""
        self._check(events)
        if time.monotonic() < self._paused_until_s:
            raise StreamAway("the broker was away a moment ago")
        try:
            if self._producer is None:
                self._producer = EventProducer(self._kafka)
            for event in events:
                self._producer.send_raw(self._encode(event), key_of(event.user_id))
            self._producer.flush(self._kafka.request_timeout_ms / 1000)
        except IngestError as error:
            self._paused_until_s = time.monotonic() + _PAUSE_S
            self._drop()  # an idempotent producer that has once given up a record never sends another
            raise StreamAway(str(error)) from error

    def _check(self, events: Sequence[Interaction]) -> None:
        now_ms = time.time_ns() // 1_000_000
        latest_ms = int(self._door.latest_ms(np.array([now_ms], np.int64), now_ms)[0])
        for i, event in enumerate(events):
            try:
                self._door.read(msgspec.to_builtins(event), now_ms, latest_ms)
            except Unusable as error:
                raise EventRefused(i, error.kind, str(error)) from error

    def _drop(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.close(timeout_s=0)

    def close(self) -> None:
        """See `EventSink`. Everything that was answered for is acknowledged by then."""
        self._drop()
