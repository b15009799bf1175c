"""Sending the ratings to the topic in time order, at a rate."""

from __future__ import annotations

import threading
import time
from typing import NamedTuple

from infra.demo.movielens import POSITIVE, Ratings
from ingest.producer import Event, EventProducer
from ingest.settings import KafkaSettings

_TICK_S = 0.005


class Sent(NamedTuple):
    """One event as it left."""

    user_id: int
    nth: int  # which event of its user it is, 1 the first
    at_s: float  # time.monotonic() just before it was handed to the producer


class Replay(threading.Thread):
    """Sends every rating once, then ends. `error` holds what stopped it early."""

    def __init__(self, kafka: KafkaSettings, ratings: Ratings, rate: int) -> None:
        """rate: events per second, 0 for as fast as it goes."""
        super().__init__(name="replay", daemon=True)
        self._kafka, self._ratings, self._rate = kafka, ratings, rate
        self._ended = threading.Event()
        self.sent = 0
        self.latest: Sent | None = None
        self.error: Exception | None = None

    @property
    def total(self) -> int:
        return len(self._ratings)

    @property
    def first_user(self) -> int:
        """Whose embedding is there first."""
        return int(self._ratings.user[0])

    def stop(self) -> None:
        """Send no more."""
        self._ended.set()

    def run(self) -> None:
        try:
            with EventProducer(self._kafka) as producer:
                self._send_all(producer)
                producer.flush()
        except Exception as error:  # noqa: BLE001 - handed to the thread that watches
            self.error = error

    def _send_all(self, producer: EventProducer) -> None:
        counts: dict[int, int] = {}
        columns = (self._ratings.user, self._ratings.item, self._ratings.rating, self._ratings.time_ms)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        started = time.monotonic()
        for user, item, rating, time_ms in rows:
            while self._rate and self.sent >= (time.monotonic() - started) * self._rate:
                if self._ended.wait(_TICK_S):
                    return
            if self._ended.is_set():
                return
            at_s = time.monotonic()
            producer.send(Event(user, item, label=int(rating >= POSITIVE), timestamp=time_ms))
            counts[user] = counts.get(user, 0) + 1
            self.sent += 1
            self.latest = Sent(user, counts[user], at_s)
