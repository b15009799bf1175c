"""Recommendations: what is answered to whom, and why."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from embedding_store.contract import F32
from embedding_store.model import ModelSettings
from native.identity import key_and_check
from tests.serving.conftest import MODEL, MakeWorld, World


def _recommend(world: World, user: str | int, **asked: Any) -> dict[str, Any]:
    answer = world.post("/v1/recommend", {"user_id": user, **asked})
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def _ids(body: dict[str, Any]) -> list[str]:
    return [item["item_id"] for item in body["items"]]


def _oracle_user(world: World, user: str, model: ModelSettings) -> F32:
    """The user vector, independently: plain NumPy over rows of the store."""
    key = np.array([key_and_check(user.encode())[0]], np.uint64)
    entries = world.store.histories("history", key).entries
    newest = entries["item"][::-1][: model.history_length]
    rows = world.store.lookup("item", newest.astype(np.uint64)).vectors.astype(np.float64)
    weights = model.clocks[0] ** np.arange(len(newest))
    return ((weights[:, None] * rows).sum(0) / weights.sum()).astype(np.float32)


def test_a_served_user_embedding_is_the_recency_weighted_mean_of_stored_rows(world: World) -> None:
    for user in ("u1", "u2", "42"):
        served = np.array(world.get(f"/v1/embeddings/user/{user}").json()["vector"])
        np.testing.assert_allclose(served, _oracle_user(world, user, MODEL), rtol=1e-5, atol=1e-7)


def test_served_scores_and_order_equal_an_independent_computation(world: World) -> None:
    body = _recommend(world, "u1", k=10, exclude_seen=False)
    names = ["i0", "i1", "i2", "i3", "i4", "i7", "1001", "a/b c"]  # those with a positive
    rows = world.store.lookup("item", np.array([key_and_check(name.encode())[0] for name in names], np.uint64))
    clock = max(shard.clock for shard in world.store.status("item"))
    popularity = rows.popularity * 0.5 ** ((clock - rows.last_seen) / MODEL.popularity_half_life)
    scores = rows.vectors @ _oracle_user(world, "u1", MODEL) + MODEL.popularity_weight * np.log(
        popularity / popularity.max()
    )
    expected = dict(sorted(zip(names, scores.tolist(), strict=True), key=lambda pair: -pair[1]))
    assert _ids(body) == list(expected)
    np.testing.assert_allclose([item["score"] for item in body["items"]], list(expected.values()), rtol=1e-4, atol=1e-5)


def test_a_personal_answer_says_how_fresh_it_is(world: World) -> None:
    body = _recommend(world, "u1", k=2)
    assert (body["strategy"], body["cold_start"]) == ("personal", False)
    assert (body["user"]["step"], body["user"]["events"]) == (5, 5)
    assert body["user"]["age_s"] >= 0
    assert body["index"]["kind"] == "exact"
    assert (body["index"]["size"], body["index"]["as_of"]) == (9, "2023-11-14T22:13:20.014Z")
    assert body["index"]["lag_ms"] >= 0
    assert body["model_version"] == world.get("/v1/model").json()["version"]
    assert all(item["age_s"] >= 0 and item["step"] > 0 for item in body["items"])


def test_seen_items_are_left_out_unless_asked_for(world: World) -> None:
    seen = {f"i{n}" for n in range(5)}
    assert not seen & set(_ids(_recommend(world, "u1", k=100)))
    assert seen <= set(_ids(_recommend(world, "u1", k=100, exclude_seen=False)))


def test_exclude_and_candidates(world: World) -> None:
    assert _ids(_recommend(world, "u1", k=100, exclude_seen=False, exclude=["i0", 1001, "unheard-of"])) != []
    left = _ids(_recommend(world, "u1", k=100, exclude_seen=False, exclude=["i0", 1001, "unheard-of"]))
    assert not {"i0", "1001"} & set(left)
    chosen = _ids(_recommend(world, "u1", k=100, exclude_seen=False, candidates=["i0", "1001", "unheard-of", "i0"]))
    assert sorted(chosen) == ["1001", "i0"]
    assert _ids(_recommend(world, "u1", candidates=["unheard-of"])) == []
    assert _ids(_recommend(world, "u1", candidates=[])) == []


def test_k_bounds_the_answer(world: World) -> None:
    everything = _ids(_recommend(world, "u1", k=1000, exclude_seen=False))
    assert len(everything) == 8
    for k in (1, 3, 8):
        assert _ids(_recommend(world, "u1", k=k, exclude_seen=False)) == everything[:k]


@pytest.mark.parametrize("user", ["never-seen", 77, "negative"])
def test_a_cold_user_is_answered_200_with_popular_items(world: World, user: str | int) -> None:
    body = _recommend(world, user, k=3)
    assert (body["cold_start"], body["strategy"]) == (True, "popular")
    assert _ids(body)[0] == "i0", "u2 liked it three times"
    assert (body["user"] is None) == (user != "negative")


def test_a_cold_user_may_be_answered_by_the_mean_taste(world: World) -> None:
    body = _recommend(world, "never-seen", k=3, fallback="mean")
    assert (body["cold_start"], body["strategy"], len(body["items"])) == (True, "mean", 3)


def test_a_cold_user_may_be_an_error(world: World) -> None:
    answer = world.post("/v1/recommend", {"user_id": "never-seen", "fallback": "error"})
    assert answer.status_code == 404
    assert answer.json()["type"].endswith("cold-user")
    assert world.post("/v1/recommend", {"user_id": "u1", "fallback": "error"}).status_code == 200


@pytest.mark.parametrize("fallback", ["popular", "mean"])
def test_an_empty_index_answers_an_empty_list(make_world: MakeWorld, fallback: str) -> None:
    body = _recommend(make_world(events=[]), "u1", fallback=fallback)
    assert (body["items"], body["cold_start"], body["strategy"], body["index"]["as_of"]) == ([], True, "popular", None)


def test_an_integer_user_and_its_decimal_string_are_one(world: World) -> None:
    assert _ids(_recommend(world, 42)) == _ids(_recommend(world, "42"))
    assert _recommend(world, 42)["cold_start"] is False


def test_a_model_without_features_has_nothing_to_filter_by(world: World) -> None:
    answer = world.post("/v1/recommend", {"user_id": "u1", "filter": {"a": 1}})
    assert answer.status_code == 422
    assert answer.json()["field"] == "filter.a"
    assert "the model's features of items are none" in answer.json()["detail"]
    assert world.post("/v1/recommend", {"user_id": "u1", "filter": None}).status_code == 200
    assert world.post("/v1/recommend", {"user_id": "u1", "filter": {}}).status_code == 200


def test_a_batch_answers_what_each_user_would_get_alone(world: World) -> None:
    users: list[str | int] = ["u1", 42, "never-seen", "negative", "u1"]
    asked: dict[str, Any] = {"k": 4, "exclude": ["i2"], "fallback": "mean"}
    answer = world.post("/v1/recommend:batch", {"user_ids": users, **asked})
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert [result["user_id"] for result in body["results"]] == list(map(str, users))
    for user, result in zip(users, body["results"], strict=True):
        alone = _recommend(world, user, **asked)
        for name in ("strategy", "cold_start"):
            assert result[name] == alone[name]
        for ours, theirs in zip(result["items"], alone["items"], strict=True):
            assert (ours["item_id"], ours["score"], ours["step"]) == (
                theirs["item_id"],
                theirs["score"],
                theirs["step"],
            )
        assert (result["user"] is None) == (alone["user"] is None)
    assert body["model_version"] == _recommend(world, "u1")["model_version"]
    strategies = world.service.metrics.strategies
    assert (strategies["personal"], strategies["mean"]) == (7, 4)


def test_a_batch_of_nobody_and_of_too_many(make_world: MakeWorld) -> None:
    world = make_world(max_users=2)
    assert world.post("/v1/recommend:batch", {"user_ids": []}).json()["results"] == []
    answer = world.post("/v1/recommend:batch", {"user_ids": ["a", "b", "c"]})
    assert (answer.status_code, answer.json()["field"], answer.json()["max"]) == (413, "user_ids", 2)


def test_a_batch_with_cold_users_may_be_an_error_that_names_them(world: World) -> None:
    answer = world.post("/v1/recommend:batch", {"user_ids": ["u1", "new", "negative"], "fallback": "error"})
    assert answer.status_code == 404
    assert answer.json()["missing"] == ["new", "negative"]
