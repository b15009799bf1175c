"""The steady stream: what is produced follows from the seed; what was acknowledged is written down."""

from __future__ import annotations

import json
import random
import threading
import time
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from kafka import KafkaProducer
from kafka.errors import KafkaError

from ingest.dead_letters import producer_options
from ingest.settings import KafkaSettings
from native.identity import canonical, key_and_check
from tests.chaos.linear import PARTITIONS

NUMBER = "number"
"""Record header: which record of the stream it is."""

_FIRST_EVENT_MS = 1_700_000_000_000
_APART_MS = 4
_OUT_OF_ORDER_MS = 2_000
_ZIPF = 1.1
_UNUSABLE = 0.004
_PROFILES = 0.03
_DESCRIBED = 0.4
_GENRES = ("drama", "crime", "satire", 7, "café", "war", "film noir")
_PLANS = ("free", "gold", "silver", 2)
_MAX_AHEAD = 20_000
_FLUSH_S = 60.0


class Produced(NamedTuple):
    """One record of the stream."""

    key: bytes
    partition: int
    value: bytes
    events: int  # usable ones in it


class Stream:
    """Records 0, 1, 2, … of a seed. Pure but for its position. features: events bring some, and profiles come too."""

    def __init__(self, seed: int, users: int, items: int, *, features: bool = False) -> None:
        self._draw, self._features = random.Random(seed), features
        self._users, self._items = _ids("u", users), _ids("i", items)
        self._user_weights, self._item_weights = _zipf(users), _zipf(items)
        self._events = 0

    def next(self) -> Produced:
        """Events of one user: mostly one, sometimes a few as lines; now and then something that is no event."""
        draw = self._draw
        (user,) = draw.choices(self._users, cum_weights=self._user_weights)
        key, partition = canonical(user), partition_of(user)
        if draw.random() < _UNUSABLE:
            return Produced(key, partition, b"not an event", 0)
        if self._features and draw.random() < _PROFILES:
            return Produced(key, partition, self._profile(user), 0)
        lines = [self._event(user) for _ in range(draw.choice((1, 1, 1, 1, 1, 1, 2, 4)))]
        return Produced(key, partition, b"\n".join(lines), len(lines))

    def _event(self, user: str | int) -> bytes:
        draw, self._events = self._draw, self._events + 1
        (item,) = draw.choices(self._items, cum_weights=self._item_weights)
        event = {
            "user_id": user,
            "item_id": item,
            "label": int(draw.random() < 0.8),
            "weight": draw.randint(1, 32) / 8,
            "timestamp": self._time_ms(),
        }
        if self._features and draw.random() < _DESCRIBED:
            described = {"genre": self._genres(), "plan": draw.choice(_PLANS), "device": draw.choice(("phone", "tv"))}
            event["features"] = {name: described[name] for name in draw.sample(sorted(described), draw.randint(0, 3))}
        return json.dumps(event, ensure_ascii=draw.random() < 0.5).encode()

    def _profile(self, user: str | int) -> bytes:
        """Of a user, or of an item, whose events are of all partitions; now and then of nothing."""
        draw = self._draw
        says = draw.random() < 0.9
        if draw.random() < 0.3:
            told: dict[str, Any] = {"user_id": user, "features": {"plan": draw.choice(_PLANS) if says else None}}
        else:
            (item,) = draw.choices(self._items, cum_weights=self._item_weights)
            told = {"item_id": item, "features": {"genre": self._genres() if says else []}}
        return json.dumps(told | {"timestamp": self._time_ms()}).encode()

    def _genres(self) -> list[str | int]:
        return self._draw.sample(_GENRES, self._draw.randint(1, 3))

    def _time_ms(self) -> int:
        return _FIRST_EVENT_MS + self._events * _APART_MS - self._draw.randrange(_OUT_OF_ORDER_MS)


def partition_of(user: str | int) -> int:
    """A user's events stay in one partition: the one that the linear model's gradients tell of."""
    return key_and_check(canonical(user))[0] % PARTITIONS


def _ids(letter: str, count: int) -> list[str | int]:
    """Integers and texts."""
    return [number + 1 if number % 3 == 0 else f"{letter}/{number}" for number in range(count)]


def _zipf(count: int) -> list[float]:
    weights: list[float] = np.cumsum(1.0 / np.arange(1, count + 1) ** _ZIPF).tolist()
    return weights


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """Where the broker says a record is."""

    partition: int
    offset: int


class Producer:
    """Sends the stream at a rate, on a thread of its own; waits for a broker that is away."""

    def __init__(self, settings: KafkaSettings, stream: Stream, events_per_s: float) -> None:
        self._stream, self._events_per_s = stream, events_per_s
        self._topic = settings.topic
        options: dict[str, Any] = producer_options(settings)
        options |= {"delivery_timeout_ms": 120_000, "reconnect_backoff_max_ms": 500, "max_block_ms": 120_000}
        self._producer = KafkaProducer(**options)
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self.acknowledged: dict[int, Acknowledged] = {}  # by number of the record
        self.failed: dict[int, str] = {}
        self.sent: list[Produced] = []
        self.sent_s: list[float] = []  # when each was sent, monotonic
        self.fault: BaseException | None = None
        self._firsts: list[tuple[float, dict[int, int]]] = []
        self._thread = threading.Thread(target=self._run, name="producer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def watch_for_firsts(self, since_s: float) -> dict[int, int]:
        """A mapping that fills itself: partition → offset of its first record sent after that time."""
        firsts: dict[int, int] = {}
        with self._lock:
            self._firsts.append((since_s, firsts))
            for number, place in self.acknowledged.items():
                self._note_first(number, place)
        return firsts

    @property
    def events(self) -> int:
        """Usable events sent so far."""
        return sum(record.events for record in self.sent)

    def stop(self) -> None:
        """Send no more, and wait until everything is acknowledged or has failed."""
        self._stopping.set()
        self._thread.join(_FLUSH_S)
        if self.fault is not None:
            raise self.fault
        self._producer.flush(timeout=_FLUSH_S)
        self._producer.close(timeout=10)

    def _run(self) -> None:
        began, events = time.monotonic(), 0
        try:
            while not self._stopping.is_set():
                while len(self.sent) - len(self.acknowledged) - len(self.failed) > _MAX_AHEAD:
                    self._stopping.wait(0.1)
                record = self._stream.next()
                self._send(record)
                events += record.events
                ahead_s = events / self._events_per_s - (time.monotonic() - began)
                if ahead_s > 0.02:
                    self._stopping.wait(ahead_s)
        except (KafkaError, AssertionError) as fault:
            self.fault = fault

    def _send(self, record: Produced) -> None:
        number = len(self.sent)
        self.sent.append(record)
        self.sent_s.append(time.monotonic())
        future = self._producer.send(
            self._topic,
            value=record.value,
            key=record.key,
            partition=record.partition,
            headers=[(NUMBER, str(number).encode())],
        )
        future.add_callback(self._acknowledge, number)
        future.add_errback(self._fail, number)

    def _acknowledge(self, number: int, metadata: Any) -> None:
        place = Acknowledged(metadata.partition, metadata.offset)
        with self._lock:
            self.acknowledged[number] = place
            self._note_first(number, place)

    def _note_first(self, number: int, place: Acknowledged) -> None:
        for since_s, firsts in self._firsts:
            if self.sent_s[number] > since_s and firsts.get(place.partition, place.offset + 1) > place.offset:
                firsts[place.partition] = place.offset

    def _fail(self, number: int, error: BaseException) -> None:
        with self._lock:
            self.failed[number] = repr(error)

    def done_watching(self, firsts: dict[int, int]) -> None:
        """The mapping needs to be filled no more."""
        with self._lock:
            self._firsts = [watch for watch in self._firsts if watch[1] is not firsts]
