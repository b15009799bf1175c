"""The store goes away: items are still answered from the mirror, marked stale; users can't be; readiness degrades."""

from __future__ import annotations

import time
from typing import Any, cast

import pytest

from embedding_store.contract import EmbeddingStore
from embedding_store.errors import StoreUnavailable
from embedding_store.memory import MemoryStore
from tests.serving.conftest import MakeWorld, World
from tests.serving.test_bad_input import check_problem


class Flaky:
    """A store that can be made to go away; counts the calls that met it away."""

    def __init__(self) -> None:
        self._store = MemoryStore()
        self.down = False
        self.refused = 0

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)

        def call(*args: Any, **options: Any) -> Any:
            if self.down:
                self.refused += 1
                raise StoreUnavailable("connection refused by redis.internal:6379")
            return method(*args, **options)

        return call


@pytest.fixture
def flaky() -> Flaky:
    return Flaky()


@pytest.fixture
def world(make_world: MakeWorld, flaky: Flaky) -> World:
    return make_world(store=cast(EmbeddingStore, flaky), max_lag_s=60)


@pytest.fixture(params=["unnoticed", "noticed"])
def down(world: World, flaky: Flaky, request: pytest.FixtureRequest) -> World:
    """The store is away; the refreshing thread has noticed it or not yet."""
    flaky.down = True
    if request.param == "noticed":
        world.service.freshness.failed("connection refused")
    return world


def test_items_are_answered_from_the_mirror_and_say_so(world: World, flaky: Flaky) -> None:
    before = world.get("/v1/embeddings/item/i1").json()
    flaky.down = True
    world.service.freshness.failed("connection refused")
    answer = world.get("/v1/embeddings/item/i1")
    assert answer.status_code == 200
    assert answer.json()["vector"] == before["vector"]
    assert answer.headers["x-stale"] == "1"
    assert answer.headers["x-as-of"] == answer.json()["as_of"] == before["as_of"]
    batch = world.post("/v1/embeddings/item:batch", {"ids": ["i1"], "format": "raw"})
    assert (batch.status_code, batch.headers["x-stale"]) == (200, "1")


def test_users_are_503_with_retry_after(down: World) -> None:
    for answer in (
        down.get("/v1/embeddings/user/u1"),
        down.post("/v1/embeddings/user:batch", {"ids": ["u1"]}),
        down.get("/v1/embeddings/item/unknown?on_missing=initial"),
    ):
        assert check_problem(answer, 503)["type"].endswith("store-down")
        assert int(answer.headers["retry-after"]) >= 1
        assert "redis.internal" not in answer.text


@pytest.mark.parametrize("fallback", ["popular", "mean"])
def test_recommendations_fall_back_to_popular_items_marked_stale(down: World, fallback: str) -> None:
    answer = down.post("/v1/recommend", {"user_id": "u1", "k": 3, "fallback": fallback})
    assert answer.status_code == 200
    assert answer.headers["x-stale"] == "1"
    body = answer.json()
    assert (body["strategy"], body["cold_start"], body["user"]) == ("popular", False, None)
    assert body["items"][0]["item_id"] == "i0"
    assert body["index"]["as_of"] == answer.headers["x-as-of"]


def test_recommendations_without_a_fallback_are_503(down: World) -> None:
    answer = down.post("/v1/recommend", {"user_id": "u1", "fallback": "error"})
    check_problem(answer, 503)
    assert answer.headers["retry-after"]


def test_the_model_is_still_described(down: World) -> None:
    answer = down.get("/v1/model")
    assert (answer.status_code, answer.headers["x-stale"], answer.json()["tables"]) == (200, "1", None)


def test_once_noticed_the_store_is_not_asked_again(world: World, flaky: Flaky) -> None:
    """So that no request waits for a connection's time-out."""
    flaky.down = True
    world.service.freshness.failed("connection refused")
    world.post("/v1/recommend", {"user_id": "u1"})
    world.get("/v1/embeddings/user/u1")
    world.get("/v1/model")
    assert flaky.refused == 0


def test_readiness_degrades_and_fails_past_the_lag(world: World) -> None:
    freshness = world.service.freshness
    freshness.failed("connection refused by redis.internal:6379")
    assert world.get("/readyz").json() == {"status": "ready", "degraded": ["store_down"]}
    freshness._confirmed_s = time.monotonic() - 61
    document = check_problem(world.get("/readyz"), 503)
    assert document["reasons"] == ["store_down", "lag"]
    assert "redis.internal" not in str(document)
    freshness.confirm(time.monotonic())
    assert world.get("/readyz").json() == {"status": "ready", "degraded": []}
    assert "x-stale" not in world.get("/v1/embeddings/item/i1").headers


def test_a_mirror_that_lags_is_stale_even_with_the_store_up(world: World) -> None:
    world.service.freshness._confirmed_s = time.monotonic() - 61
    assert check_problem(world.get("/readyz"), 503)["reasons"] == ["lag"]
    assert world.get("/v1/embeddings/item/i1").headers["x-stale"] == "1"
