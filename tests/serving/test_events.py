"""Events over HTTP: off by default, checked before anything is sent, never keeping others waiting."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest

from serving.app import create_app
from serving.errors import EventRefused, StartupError, StreamAway
from serving.main import serve
from serving.ranking_schemas import Interaction
from serving.service import Service
from serving.settings import ServingSettings
from tests.serving.conftest import World

EVENT = {"user_id": "u1", "item_id": 7}


class Sink:
    """Keeps what it is given, or raises."""

    def __init__(self, error: Exception | None = None) -> None:
        self.taken: list[Interaction] = []
        self.threads: set[str] = set()
        self.closed = False
        self._error = error

    def produce(self, events: Sequence[Interaction]) -> None:
        self.threads.add(threading.current_thread().name)
        if self._error is not None:
            raise self._error
        self.taken.extend(events)

    def close(self) -> None:
        self.closed = True


def world_of(world: World, sink: Sink, **settings: Any) -> World:
    service = Service(ServingSettings(events=True, **settings), events=sink)
    return World(service, world.store, world.writer, create_app(service))


def test_events_are_off_by_default_and_say_so(world: World) -> None:
    answer = world.post("/v1/events", {"events": [EVENT]})
    assert (answer.status_code, answer.json()["type"]) == (404, "urn:towline:problem:events-off")
    assert "serving.events" in answer.json()["detail"]


def test_what_is_acknowledged_is_202_in_order(world: World) -> None:
    sink = Sink()
    taking = world_of(world, sink)
    events = [
        EVENT,
        {"user_id": "é/ ", "item_id": "i1", "label": 0, "weight": 2.5, "timestamp": "2026-01-31T12:00:00Z"},
    ]
    answer = taking.post("/v1/events", {"events": events})
    assert (answer.status_code, answer.json()) == (202, {"accepted": 2})
    assert sink.taken == [Interaction("u1", 7), Interaction("é/ ", "i1", 0.0, 2.5, "2026-01-31T12:00:00Z")]
    taking.service.close()
    assert sink.closed
    assert all(name.startswith("serving") for name in sink.threads)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "events"),
        ({"events": []}, "events"),
        ({"events": [{"user_id": "u1"}]}, "events[0]"),
        ({"events": [EVENT, EVENT | {"user_id": ""}]}, "events[1].user_id"),
        ({"events": [EVENT | {"item_id": "x" * 513}]}, "events[0].item_id"),
        ({"events": [EVENT | {"label": -1}]}, "events[0].label"),
        ({"events": [EVENT | {"weight": 0}]}, "events[0].weight"),
        ({"events": [EVENT | {"weight": "1"}]}, "events[0].weight"),
        ({"events": [EVENT | {"wieght": 1}]}, "wieght"),
    ],
)
def test_bad_events_are_422_with_their_place(world: World, body: dict[str, Any], field: str) -> None:
    sink = Sink()
    taking = world_of(world, sink)
    answer = taking.post("/v1/events", body)
    assert answer.status_code == 422, answer.text
    assert answer.json()["field"] == field
    assert sink.taken == []
    taking.service.close()


def test_what_the_door_refuses_is_422_with_its_place(world: World) -> None:
    taking = world_of(world, Sink(EventRefused(3, "timestamp", "timestamp is 5, which looks like seconds")))
    answer = taking.post("/v1/events", {"events": [EVENT] * 4})
    assert (answer.status_code, answer.json()["field"]) == (422, "events[3].timestamp")
    assert "looks like seconds" in answer.json()["detail"]
    taking.service.close()


def test_a_broker_that_is_away_is_503_and_may_be_tried_again(world: World) -> None:
    taking = world_of(world, Sink(StreamAway("no brokers at kafka:9092")))
    answer = taking.post("/v1/events", {"events": [EVENT]})
    assert (answer.status_code, answer.json()["type"]) == (503, "urn:towline:problem:stream-away")
    assert answer.headers["retry-after"]
    assert "kafka:9092" not in answer.text
    taking.service.close()


def test_too_many_events_are_413(world: World) -> None:
    sink = Sink()
    taking = world_of(world, sink, max_batch=3)
    answer = taking.post("/v1/events", {"events": [EVENT] * 4})
    assert (answer.status_code, answer.json()["max"], sink.taken) == (413, 3, [])
    taking.service.close()


def test_a_program_without_a_producer_does_not_start(tmp_path: Any) -> None:
    from dataclasses import dataclass

    from embedding_store.settings import RedisSettings

    @dataclass(frozen=True)
    class Config:
        redis: RedisSettings
        serving: ServingSettings

    config = Config(RedisSettings(url=f"unix://{tmp_path}/s"), ServingSettings(events=True, port=0))
    with pytest.raises(StartupError, match=r"serving\.events is set"):
        serve(config)
