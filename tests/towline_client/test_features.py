"""Features of requests and events through both clients, against a real server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from serving.app import create_app
from serving.ranking_schemas import Interaction
from serving.service import Service
from serving.settings import ServingSettings
from tests.serving.conftest import World, Writer, load
from tests.towline_client.test_client import Both
from tests.trainer.featured import learned
from tests.trainer.features import MODEL
from towline_client import Event, Invalid

PHONE = {"device": "phone", "tags": [1, "b"]}


class Sink:
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.events: list[Interaction] = []

    def produce(self, events: Sequence[Interaction]) -> None:
        """As if acknowledged."""
        self.events += events

    def close(self) -> None:
        """Nothing is open."""


@pytest.fixture
def sink() -> Sink:
    return Sink()


@pytest.fixture
def both(url_of: Callable[[World], str], sink: Sink) -> Any:
    store = learned(150)
    service = Service(ServingSettings(events=True), events=sink)
    load(service, store, MODEL)
    yield Both(url_of(World(service, store, Writer(store, MODEL), create_app(service))))
    service.close()


def test_answers_are_for_the_features_that_are_sent(both: Both, sink: Sink) -> None:
    plain, phone = (both.recommend(3, k=5, exclude_seen=False, features=f) for f in (None, PHONE))
    assert [i.score for i in plain.items] != [i.score for i in phone.items]
    ids = [i.item_id for i in phone.items]
    assert both.score(3, ids, features=PHONE).scores == pytest.approx([i.score for i in phone.items], abs=1e-5)
    (one,) = both.recommend_batch([3], k=5, exclude_seen=False, features=PHONE).results
    assert [i.item_id for i in one.items] == ids
    why = both.explain(3, ids[0], features=PHONE)
    assert {(f.name, f.of) for f in why.parts.features} >= {("device", "request"), ("tags", "request")}
    assert why.parts.item is not None
    assert why.score == pytest.approx(phone.items[0].score, abs=1e-5)
    with pytest.raises(Invalid, match="send a text or an integer"):
        both.recommend(3, features={"device": 1.5})
    assert both.send_events([Event(3, 100, features=PHONE), Event(3, 101)]) == 2
    assert [event.features for event in sink.events[:2]] == [PHONE, None]


def test_items_are_those_that_pass_the_filter(both: Both) -> None:
    every = {i.item_id for i in both.recommend(3, k=50, exclude_seen=False).items}
    some = {i.item_id for i in both.recommend(3, k=50, exclude_seen=False, filter={"genre": ["a"]}).items}
    assert set() < some < every
    (one,) = both.recommend_batch([3], k=50, exclude_seen=False, filter={"genre": "a"}).results
    assert {i.item_id for i in one.items} == some
    assert {i.item_id for i in both.similar([100], k=50, filter={"genre": "a"}).items} == some - {"100"}
    dear = both.recommend(3, k=50, exclude_seen=False, filter={"genre": "a", "price": {"min": 7}}).items
    assert {i.item_id for i in dear} < some
    with pytest.raises(Invalid, match="the model's features of items are genre, price"):
        both.recommend(3, filter={"colour": "red"})
