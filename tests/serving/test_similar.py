"""Items near items, against cosines of the embeddings that the service answers itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from embedding_store.model import ModelSettings
from tests.serving.conftest import MakeWorld, World
from tests.serving.test_score import ITEMS


def _similar(world: World, items: list[Any], **asked: Any) -> dict[str, Any]:
    answer = world.post("/v1/similar", {"item_ids": items, **asked})
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def _units(world: World) -> dict[str, Any]:
    vectors = world.post("/v1/embeddings/item:batch", {"ids": ITEMS}).json()["vectors"]
    return {item: np.array(v) / np.linalg.norm(v) for item, v in zip(ITEMS, vectors, strict=True)}


@pytest.mark.parametrize("given", [["i0"], ["i0", 1001], ["i0", "i0", "i9"]])
@pytest.mark.parametrize("layers", [(), (5,)])
def test_nearest_by_cosine_to_the_given_items(make_world: MakeWorld, given: list[Any], layers: tuple[int, ...]) -> None:
    world = make_world(model=ModelSettings(dim=6, shards=2, dense_layers=layers))
    units = _units(world)
    extra = np.array(world.get("/v1/embeddings/item/i9").json()["vector"])
    units_of = units | {"i9": extra / np.linalg.norm(extra)}
    direction = np.sum([units_of[str(item)] for item in given], axis=0)
    cosines = {item: float(u @ direction / np.linalg.norm(direction)) for item, u in units.items()}
    expected = sorted((item for item in ITEMS if item not in map(str, given)), key=lambda item: -cosines[item])
    body = _similar(world, given, k=3)
    assert [item["item_id"] for item in body["items"]] == expected[:3]
    assert [item["score"] for item in body["items"]] == pytest.approx([cosines[i] for i in expected[:3]], abs=1e-5)
    assert body["missing"] == []
    assert body["index"]["size"] == 9


def test_exclude_and_candidates(world: World) -> None:
    everything = [item["item_id"] for item in _similar(world, ["i0"], k=100)["items"]]
    assert sorted(everything) == sorted(set(ITEMS) - {"i0"}), "neither itself, nor what nobody liked"
    left = [item["item_id"] for item in _similar(world, ["i0"], k=100, exclude=[everything[0]])["items"]]
    assert left == everything[1:]
    few = [item["item_id"] for item in _similar(world, ["i0"], candidates=["i0", "nope", *everything[3:5]])["items"]]
    assert few == everything[3:5]


def test_unknown_items_are_named_and_left_out_and_alone_404(world: World) -> None:
    body = _similar(world, ["nope", "i0", 7], k=2)
    assert body["missing"] == ["nope", "7"]
    assert len(body["items"]) == 2
    answer = world.post("/v1/similar", {"item_ids": ["nope", 7]})
    assert (answer.status_code, answer.json()["missing"]) == (404, ["nope", "7"])


@pytest.mark.parametrize("field", ["item_ids", "exclude", "candidates"])
def test_over_the_cap_is_413(make_world: MakeWorld, field: str) -> None:
    world = make_world(max_batch=3)
    answer = world.post("/v1/similar", {"item_ids": ["i0"], field: ["i0"] * 4})
    assert (answer.status_code, answer.json()["field"]) == (413, field)
