"""Events that can't be used, sent to a topic of their own with the place they came from and the reason."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any, NamedTuple

from kafka import KafkaProducer
from kafka.errors import KafkaError

from ingest.contract import StreamMisconfigured, StreamUnavailable
from ingest.kafka_client import client_options, connect, translate, translated
from ingest.settings import KafkaSettings

MAX_VALUE_BYTES = 256 << 10
"""A longer value is cut to this, and the header `truncated_from` tells its size."""
_MAX_PENDING = 10_000
_CHECK_S = 0.1


class DeadLetter(NamedTuple):
    """Key in the topic: `topic:partition:offset:line`. Headers: topic, partition, offset, line, kind, reason.

    Of a range of records the key is `topic:partition:offset-last`, and the header `last` tells where it ends.
    """

    topic: str
    partition: int
    offset: int
    line: int
    kind: str
    reason: str
    value: bytes | None
    last: int | None = None  # offset of a range's last record

    def key(self) -> bytes:
        if self.last is not None:
            return f"{self.topic}:{self.partition}:{self.offset}-{self.last}".encode()
        return f"{self.topic}:{self.partition}:{self.offset}:{self.line}".encode()

    def headers(self) -> list[tuple[str, bytes]]:
        names = ("topic", "partition", "offset", "line", "kind", "reason")
        headers = [(name, str(part).encode("utf-8", "replace")) for name, part in zip(names, self, strict=False)]
        if self.last is not None:
            headers.append(("last", str(self.last).encode()))
        if self.value is not None and len(self.value) > MAX_VALUE_BYTES:
            headers.append(("truncated_from", str(len(self.value)).encode()))
        return headers


class DeadLetters:
    """Sends dead letters, at least once. The producer is made for the first one. Not thread-safe."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._producer: KafkaProducer | None = None
        self._pending: list[tuple[DeadLetter, Any]] = []  # with the client's future
        self.counts: Counter[str] = Counter()
        """Letters by kind of reason."""

    def send(self, letter: DeadLetter) -> None:
        """Hand out; `flush` tells whether it arrived. Raises StreamUnavailable, StreamMisconfigured."""
        self.counts[letter.kind] += 1
        self._pending.append((letter, None))
        if len(self._pending) >= _MAX_PENDING:
            self.flush()

    def flush(self) -> None:
        """Return once every letter is acknowledged by all in-sync replicas.

        Raises StreamUnavailable after `kafka.request_timeout_ms`, StreamMisconfigured; letters that failed are kept and
        sent again by the next flush, with a new producer: an idempotent one of kafka-python 3.0.12 that has once given
        up a record never sends another.
        """
        if not self._pending:
            return
        deadline = time.monotonic() + self._settings.request_timeout_ms / 1000
        doing = f"sending {len(self._pending)} dead letters to {self._settings.dead_letter_topic}"
        with translated(doing, self._settings):
            producer = self._connected()
            self._pending = [(letter, future or self._hand_over(producer, letter)) for letter, future in self._pending]
            try:
                producer.flush(timeout=max(_CHECK_S, deadline - time.monotonic()))
            finally:
                error = self._forget_acknowledged()
                if self._pending:
                    self._drop_producer()
        if error is not None:
            raise translate(error, doing, self._settings)
        if self._pending:
            raise StreamUnavailable(f"{doing} took longer than kafka.request_timeout_ms")

    def close(self) -> None:
        """Flush if the broker answers, then disconnect. Idempotent; what is not acknowledged is sent by the replay."""
        try:
            self.flush()
        except (StreamUnavailable, StreamMisconfigured):
            self._pending.clear()
        if self._producer is not None:
            producer, self._producer = self._producer, None
            producer.close(timeout=0 if self._pending else 5)

    def _drop_producer(self) -> None:
        """What is under way may still arrive: then twice."""
        producer, self._producer = self._producer, None
        self._pending = [(letter, None) for letter, _ in self._pending]
        if producer is not None:
            producer.close(timeout=0)

    def _forget_acknowledged(self) -> KafkaError | None:
        """Keep what failed, to be sent again, and what is under way; returns one of the errors."""
        error, kept = None, []
        for letter, future in self._pending:
            if not future.is_done:
                kept.append((letter, future))
            elif future.failed():
                error = future.exception
                kept.append((letter, None))
        self._pending = kept
        return error

    def _hand_over(self, producer: KafkaProducer, letter: DeadLetter) -> Any:
        value = None if letter.value is None else letter.value[:MAX_VALUE_BYTES]
        return producer.send(self._settings.dead_letter_topic, value=value, key=letter.key(), headers=letter.headers())

    def _connected(self) -> KafkaProducer:
        if self._producer is None:
            doing = "connecting a producer of dead letters"
            self._producer = connect(KafkaProducer, producer_options(self._settings), doing, self._settings)
        return self._producer


def producer_options(settings: KafkaSettings) -> dict[str, Any]:
    """Options of a producer that loses and doubles nothing: acknowledged by all in-sync replicas, idempotent."""
    return client_options(settings) | {
        "acks": "all",
        "enable_idempotence": True,
        "linger_ms": 5,
        "batch_size": 256 << 10,
        "max_request_size": 16 << 20,  # the broker's own limit decides
        "max_block_ms": settings.request_timeout_ms,
        "delivery_timeout_ms": 2 * settings.request_timeout_ms,
        "allow_auto_create_topics": False,
        "metrics_enabled": False,
    }
