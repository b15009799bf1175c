"""What came next after a user's newest item counts in every answer, and is told apart."""

from __future__ import annotations

import numpy as np
import pytest

from embedding_store.contract import ENTRY, Flush, Range, Source
from embedding_store.transitions import LIFT, SMALL
from native.identity import key_and_check
from native.ragged import Ragged
from tests.serving.conftest import EVENT_TIME_MS, MODEL, TOPIC, MakeWorld, World

WALK = MODEL.model_copy(update={"successors": 4})


def _key(item: str) -> int:
    return key_and_check(item.encode())[0]


def _followed(world: World, item: str, by: list[str]) -> None:
    """Store that `by` came next after `item`, the oldest first."""
    appends = np.zeros(len(by), ENTRY)
    appends["weight"] = 1.0
    appends["item"], appends["place"] = [_key(name) for name in by], np.arange(len(by)) << 16
    nothing = {"checks": np.zeros(1, np.uint32), "positives": np.zeros(1, np.float32), "ids": Ragged.of([b""])}
    replies = world.store.apply(
        "next",
        Flush(
            generation=0, ranges=(Range(Source(TOPIC, 0), 0, len(by)),), events=len(by), event_time_ms=EVENT_TIME_MS,
            produced_ms=EVENT_TIME_MS, now_ms=EVENT_TIME_MS, keys=np.array([_key(item)], np.uint64),
            counts=np.array([len(by)]), appends=appends, append_rows=np.zeros(len(by), np.int64), **nothing,
        ),
    )  # fmt: skip
    assert {reply.outcome for reply in replies} == {"applied"}


def _gain(world: World, item: str, share: float) -> float:
    """What a share among what came directly after the only known item of a user adds: direct and near are the same."""
    row = world.store.lookup("item", np.array([_key(item)], np.uint64))
    clock = min(status.clock for status in world.store.status("item"))
    liked = float(row.popularity[0]) * 0.5 ** ((clock - int(row.last_seen[0])) / WALK.popularity_half_life)
    enough = max(SMALL, LIFT * max(liked, WALK.popularity_floor) * np.log(2) / WALK.popularity_half_life)
    return float(2 * WALK.transition_weight * np.log1p(share / enough))


def test_what_came_next_counts_in_every_answer(make_world: MakeWorld) -> None:
    world = make_world(model=WALK)
    items = ["1001", "a/b c", "i7"]  # what u1 has not seen
    ask = {"user_id": "u1", "item_ids": items}
    before = dict(zip(items, world.post("/v1/score", ask).json()["scores"], strict=True))
    worst = min(before, key=lambda item: before[item])
    _followed(world, "i4", ["i0", "i7", worst, "unheard of", worst])  # i4 is u1's newest; the first is too old
    gains = {item: _gain(world, item, {worst: 2 / 4}.get(item, 0.0)) for item in items}
    if worst != "i7":
        gains["i7"] = _gain(world, "i7", 1 / 4)
    expected = {item: before[item] + gains[item] for item in items}
    after = dict(zip(items, world.post("/v1/score", ask).json()["scores"], strict=True))
    assert after == pytest.approx(expected, abs=1e-5)
    best = sorted(items, key=lambda item: -expected[item])
    for answer in (
        world.post("/v1/recommend", {"user_id": "u1", "k": 3}).json()["items"],
        world.post("/v1/recommend", {"user_id": "u1", "k": 3, "candidates": items}).json()["items"],
        world.post("/v1/recommend:batch", {"user_ids": ["u2", "u1"], "k": 3}).json()["results"][1]["items"],
    ):
        assert [item["item_id"] for item in answer] == best
        assert [item["score"] for item in answer] == pytest.approx([expected[item] for item in best], abs=1e-5)
    why = world.get(f"/v1/explain?user_id=u1&item_id={worst}").json()
    assert why["parts"]["transition"] == pytest.approx(gains[worst], abs=1e-5)
    assert (why["score"], why["rank"]) == (pytest.approx(expected[worst], abs=1e-5), 1 + best.index(worst))
    parts = why["parts"]["clocks"][0]["score"] + why["parts"]["popularity"] + why["parts"]["transition"]
    assert parts == pytest.approx(why["score"], abs=1e-5)


def test_without_transitions_nothing_is_told_of_them(world: World) -> None:
    assert world.get("/v1/explain?user_id=u1&item_id=i7").json()["parts"]["transition"] is None
