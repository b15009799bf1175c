"""Dead letters that the broker did not take in time are sent again by a new producer."""

from __future__ import annotations

import pytest
from kafka.errors import KafkaTimeoutError
from kafka.future import Future

from ingest import dead_letters
from ingest.contract import StreamUnavailable
from ingest.dead_letters import DeadLetter, DeadLetters
from ingest.settings import KafkaSettings

SETTINGS = KafkaSettings(bootstrap_servers="nowhere:9092", request_timeout_ms=1000)


class Producer:
    """Takes records. stuck: acknowledges none of them, ever, as one that has given up a record."""

    def __init__(self, *, stuck: bool) -> None:
        self._stuck = stuck
        self.sent: list[tuple[bytes, Future]] = []
        self.closed = False

    def send(self, topic: str, *, value: bytes | None, key: bytes, headers: object) -> Future:
        self.sent.append((key, Future()))
        return self.sent[-1][1]

    def flush(self, timeout: float) -> None:
        if self._stuck:
            raise KafkaTimeoutError("Timeout waiting for future")
        for _, future in self.sent:
            if not future.is_done:
                future.success(None)

    def close(self, timeout: float) -> None:
        self.closed = True


def letter(offset: int) -> DeadLetter:
    return DeadLetter("events", 0, offset, 0, "json", "not json", b"{")


@pytest.fixture
def producers(monkeypatch):
    """Made one after the other: the first is stuck."""
    made: list[Producer] = []

    def connect(*_: object) -> Producer:
        made.append(Producer(stuck=not made))
        return made[-1]

    monkeypatch.setattr(dead_letters, "connect", connect)
    return made


def test_a_stuck_producer_is_replaced_and_nothing_is_forgotten(producers):
    letters = DeadLetters(SETTINGS)
    letters.send(letter(1))
    with pytest.raises(StreamUnavailable):
        letters.flush()
    assert producers[0].closed
    letters.send(letter(2))
    letters.flush()
    assert [key for key, _ in producers[1].sent] == [letter(1).key(), letter(2).key()]
    letters.flush()
    assert len(producers) == 2
    letters.close()
    assert producers[1].closed
