"""Explanations over HTTP: they add up, and agree with what is recommended and scored."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest

from embedding_store.model import ModelSettings
from tests.serving.conftest import MODEL, MakeWorld, World

LAYERS = ModelSettings(dim=6, history_length=3, seen_length=8, shards=2, dense_layers=(5, 4), learned_gates=False)


def _explain(world: World, user: str, item: str) -> dict[str, Any]:
    answer = world.get(f"/v1/explain?user_id={quote(user, safe='')}&item_id={quote(item, safe='')}")
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


@pytest.mark.parametrize("model", [MODEL, LAYERS])
@pytest.mark.parametrize(("user", "item"), [("u1", "i7"), ("u2", "i1"), ("u/slash é", "i0"), ("42", "a/b c")])
def test_parts_add_up_to_the_score(make_world: MakeWorld, model: ModelSettings, user: str, item: str) -> None:
    world = make_world(model=model)
    body = _explain(world, user, item)
    assert (body["user_id"], body["item_id"], body["strategy"]) == (user, item, "personal")
    parts = body["parts"]
    clocks = sum(clock["score"] for clock in parts["clocks"])
    assert [clock["recency"] for clock in parts["clocks"]] == list(model.clocks)
    assert (parts["user_id_vector"], parts["dense_bias"] is None) == (None, not model.dense_layers)
    assert clocks + (parts["dense_bias"] or 0) + parts["popularity"] + (parts["transition"] or 0) == pytest.approx(
        body["score"], abs=1e-5
    )
    assert sum(part["score"] for part in body["history"]) == pytest.approx(clocks, abs=1e-5)
    scored = world.post("/v1/score", {"user_id": user, "item_ids": [item]}).json()
    assert body["score"] == pytest.approx(scored["scores"][0], abs=1e-6)
    assert body["item"]["events"] > 0


def test_the_rank_is_the_place_among_what_is_recommended(world: World) -> None:
    for place, item in enumerate(world.post("/v1/recommend", {"user_id": "u1", "k": 10}).json()["items"]):
        body = _explain(world, "u1", item["item_id"])
        assert (body["rank"], body["seen"]) == (place + 1, False)
    assert _explain(world, "u1", "i0")["seen"]


def test_the_history_names_its_items(world: World) -> None:
    body = _explain(world, "u2", "i3")
    assert {part["item_id"]: part["times"] for part in body["history"]} == {"i1": 2, "i7": 1}, "of the newest three"


@pytest.mark.parametrize("user", ["never-seen", "negative"])
def test_a_cold_user_is_explained_by_popularity(world: World, user: str) -> None:
    body = _explain(world, user, "i0")
    assert (body["strategy"], body["cold_start"], body["rank"]) == ("popular", True, 1)
    assert body["parts"]["clocks"] == body["history"] == []
    assert body["score"] == body["parts"]["popularity"]
    assert (body["user"] is None) == (user != "negative")


def test_what_nobody_liked_has_neither_score_nor_rank(world: World) -> None:
    body = _explain(world, "u1", "i9")
    assert (body["score"], body["rank"], body["parts"]["popularity"]) == (None, None, None)


@pytest.mark.parametrize(
    ("query", "status", "field"),
    [
        ("", 422, "user_id"),
        ("user_id=u1", 422, "item_id"),
        ("user_id=&item_id=i0", 422, "user_id"),
        ("user_id=u1&user_id=u2&item_id=i0", 422, "user_id"),
        ("user_id=u1&item_id=%ff", 422, "item_id"),
        ("user_id=u1&item_id=" + "x" * 513, 422, "item_id"),
        ("user_id=u1&item_id=nope", 404, None),
    ],
)
def test_what_cannot_be_explained(world: World, query: str, status: int, field: str | None) -> None:
    answer = world.get(f"/v1/explain?{query}")
    assert answer.status_code == status
    assert answer.json().get("field") == field


def test_plus_and_percent_twenty_are_a_space(world: World) -> None:
    for spelt in ("a/b+c", "a%2Fb%20c"):
        assert world.get(f"/v1/explain?user_id=u1&item_id={spelt}").json()["item_id"] == "a/b c"


def test_without_the_store_nobody_is_explained(world: World) -> None:
    world.service.freshness.failed("gone")
    answer = world.get("/v1/explain?user_id=u1&item_id=i0")
    assert (answer.status_code, answer.json()["type"]) == (503, "urn:towline:problem:store-down")
    assert answer.headers["retry-after"]
