"""Scores: those that recommendations are ranked by, whoever and whatever is asked for."""

from __future__ import annotations

from typing import Any

import pytest

from tests.serving.conftest import MakeWorld, World

ITEMS = ["i0", "i1", "i2", "i3", "i4", "i7", "1001", "a/b c"]


def _score(world: World, user: str | int, items: list[Any], **asked: Any) -> dict[str, Any]:
    answer = world.post("/v1/score", {"user_id": user, "item_ids": items, **asked})
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


@pytest.mark.parametrize("user", ["u1", "u2", 42, "never-seen"])
@pytest.mark.parametrize("fallback", ["popular", "mean"])
def test_scores_equal_those_of_recommendations(world: World, user: str | int, fallback: str) -> None:
    asked = {"user_id": user, "k": 100, "exclude_seen": False, "fallback": fallback}
    recommended = world.post("/v1/recommend", asked).json()
    expected = {item["item_id"]: item["score"] for item in recommended["items"]}
    body = _score(world, user, ITEMS, fallback=fallback)
    assert body["scores"] == pytest.approx([expected[item] for item in ITEMS], abs=1e-6)
    assert body["found"] == [True] * len(ITEMS)
    assert all(age >= 0 for age in body["age_s"])
    for name in ("strategy", "cold_start", "model_version"):
        assert body[name] == recommended[name]


def test_what_is_never_recommended_has_no_score(world: World) -> None:
    body = _score(world, "u1", ["i9", "unheard-of", 1001, "1001"])
    assert body["scores"][:2] == [None, None]
    assert body["found"] == [True, False, True, True], "i9 is there, but no positive event has named it"
    assert body["age_s"][1] is None
    assert body["scores"][2] == body["scores"][3]
    assert _score(world, "u1", [])["scores"] == []


def test_a_cold_user_may_be_an_error(world: World) -> None:
    answer = world.post("/v1/score", {"user_id": "new", "item_ids": ["i0"], "fallback": "error"})
    assert (answer.status_code, answer.json()["type"]) == (404, "urn:towline:problem:cold-user")


def test_over_the_cap_is_413(make_world: MakeWorld) -> None:
    world = make_world(max_batch=3)
    answer = world.post("/v1/score", {"user_id": "u1", "item_ids": ["i0"] * 4})
    assert (answer.status_code, answer.json()["field"]) == (413, "item_ids")
