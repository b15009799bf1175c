"""Filters by declared features of items over HTTP, against what the topic told of each item."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from embedding_store.memory import MemoryStore
from embedding_store.ranking import _FEW
from native.features import keys_of
from tests.serving.conftest import World, served
from tests.serving.test_features import scores
from tests.trainer.featured import learned
from tests.trainer.features import MODEL, newest, topic

LOGS = topic(0, records=300)
TOLD = newest(LOGS, "item")
PHONE = {"device": "phone"}
EDGES = [b for f in MODEL.feature_schema.declared if f.name == "price" for b in f.boundaries]
FILTERS: list[dict[str, Any]] = [
    {"genre": "a"},
    {"genre": ["a", "b", "zzz"]},
    {"price": {"min": 7}},
    {"price": {"max": 31}},
    {"genre": ["c", "d"], "price": {"min": 3, "max": 63}},
    {"genre": "nobody has it"},
]


@pytest.fixture(scope="module")
def store() -> MemoryStore:
    """Learned by a worker."""
    return learned(300)


@pytest.fixture
def world(store: MemoryStore) -> Any:
    yield from served(store, MODEL)


def passes(item: str, wanted: dict[str, Any]) -> bool:
    """By the values that the item's newest event told."""
    schema = MODEL.feature_schema
    own = set(TOLD.get(int(item), []))
    for name, value in wanted.items():
        feature = schema.declared[schema.by_name[name]]
        if isinstance(value, dict):
            some = [low for low in (-1e9, *EDGES) if value.get("min", -1e9) <= low < value.get("max", 1e9)]
        else:
            some = value if isinstance(value, list) else [value]
        if not own & {key for one in some for key in keys_of(feature, one)}:
            return False
    return True


@pytest.mark.parametrize("few", [_FEW, 1, 0])  # 1: all are scored alone; 0: as good as none is, so that the pass masks
@pytest.mark.parametrize("wanted", FILTERS)
def test_the_best_of_what_passes(
    world: World, wanted: dict[str, Any], few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("embedding_store.ranking._FEW", few or 10**9)
    for ask in (
        {"user_id": 3, "exclude_seen": False},
        {"user_id": 3, "features": PHONE},
        {"user_id": "new"},
        {"user_id": "new", "fallback": "mean"},
        {"user_id": 3, "exclude_seen": False, "candidates": [100, 103, 105, 107, 999]},
    ):
        every = scores(world.post("/v1/recommend", ask | {"k": 50}))
        expected = {item: score for item, score in every.items() if passes(item, wanted)}
        found = scores(world.post("/v1/recommend", ask | {"k": 50, "filter": wanted}))
        assert found == pytest.approx(expected, abs=1e-5)
        first = scores(world.post("/v1/recommend", ask | {"k": 2, "filter": wanted}))
        assert list(first) == list(found)[:2]
    every = scores(world.post("/v1/similar", {"item_ids": [100], "k": 50}))
    found = scores(world.post("/v1/similar", {"item_ids": [100], "k": 50, "filter": wanted}))
    assert found == pytest.approx({item: score for item, score in every.items() if passes(item, wanted)}, abs=1e-5)
    assert list(found) == [item for item in every if item in found]
    both = world.post("/v1/recommend:batch", {"user_ids": [3, 12], "k": 50, "filter": wanted}).json()["results"]
    for result in both:
        alone = scores(world.post("/v1/recommend", {"user_id": result["user_id"], "k": 50, "filter": wanted}))
        assert {i["item_id"]: i["score"] for i in result["items"]} == pytest.approx(alone, abs=1e-5)


def test_concurrent_requests_have_filters_of_their_own(world: World) -> None:
    asks = [{"user_id": 3, "k": 50, **({"filter": wanted} if wanted else {})} for wanted in (None, *FILTERS) * 3]
    alone = [scores(world.post("/v1/recommend", ask)) for ask in asks]

    async def at_once() -> list[Any]:
        return await asyncio.gather(*(world._request("POST", "/v1/recommend", {"json": ask}) for ask in asks))

    for answer, expected in zip(asyncio.run(at_once()), alone, strict=True):
        assert scores(answer) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("path", ["/v1/recommend", "/v1/recommend:batch", "/v1/similar"])
@pytest.mark.parametrize(
    ("wanted", "field", "said"),
    [
        ({"genere": "a"}, "filter.genere", "did you mean 'genre'? the model's features of items are genre, price"),
        ({"device": "phone"}, "filter.device", "'device' is no feature of items: those of the model are genre, price"),
        ({"price": {"min": 4}}, "filter.price", "min 4 is no boundary"),
        ({"price": {"min": 7, "max": 3}}, "filter.price", "min 7 is not below max 3"),
        ({"price": {"least": 7}}, "filter.price", "with min, max or both"),
        ({"price": 7}, "filter.price", "price is a number: send a range"),
        ({"genre": []}, "filter.genre", "genre names no category"),
        ({"genre": 1.5}, "filter.genre", "str"),
        ({"genre": None}, "filter.genre", "null"),
    ],
)
def test_what_can_not_be_filtered_by_is_named(
    world: World, path: str, wanted: dict[str, Any], field: str, said: str
) -> None:
    who: dict[str, Any] = {"recommend": {"user_id": 3}, "similar": {"item_ids": [100]}}.get(
        path.removeprefix("/v1/"), {"user_ids": [3]}
    )
    answer = world.post(path, who | {"filter": wanted})
    assert answer.status_code == 422, answer.text
    assert answer.json()["field"].startswith("filter")
    assert said in answer.json()["detail"]


def test_the_document_names_what_items_can_be_filtered_by(world: World) -> None:
    schemas = world.get("/openapi.json").json()["components"]["schemas"]
    for name in ("RecommendRequest", "RecommendBatchRequest", "SimilarRequest"):
        given = schemas[name]["properties"]["filter"]
        assert set(given["properties"]) == {"genre", "price"}
        assert given["additionalProperties"] is False
