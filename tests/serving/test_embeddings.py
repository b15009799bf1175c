"""One embedding by id."""

from __future__ import annotations

import json
from datetime import datetime
from urllib.parse import quote

import numpy as np
import pytest

from embedding_store.contract import F32
from native.identity import key_and_check
from tests.serving.conftest import MakeWorld, World


def _stored(world: World, item: str) -> F32:
    return world.store.lookup("item", np.array([key_and_check(item.encode())[0]], np.uint64)).vectors[0]


def test_json_has_the_stored_row_with_its_step_age_and_own_events(world: World) -> None:
    answer = world.get("/v1/embeddings/item/i1")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    assert np.array_equal(np.array(body["vector"], np.float32), _stored(world, "i1"))
    row = world.store.lookup("item", np.array([key_and_check(b"i1")[0]], np.uint64))
    assert (body["id"], body["tower"], body["dim"], body["known"], body["source"]) == ("i1", "item", 6, True, "mirror")
    assert (body["step"], body["events"]) == (int(row.clock[0]), int(row.count[0])) == (10, 3)
    assert 0 <= body["age_s"] < 30
    assert datetime.fromisoformat(body["updated_at"]).timestamp() * 1000 == pytest.approx(int(row.updated_ms[0]), abs=1)
    assert body["as_of"] == "2023-11-14T22:13:20.014Z"
    assert "x-stale" not in answer.headers


def test_raw_is_little_endian_float32_with_step_and_age(world: World) -> None:
    answer = world.get("/v1/embeddings/item/i1", headers={"Accept": "application/octet-stream"})
    assert answer.headers["content-type"] == "application/octet-stream"
    assert np.array_equal(np.frombuffer(answer.content, "<f4"), _stored(world, "i1"))
    assert answer.headers["x-embedding-step"] == "10"
    assert 0 <= int(answer.headers["x-embedding-age-ms"]) < 30_000
    assert (answer.headers["x-embedding-events"], answer.headers["x-embedding-known"]) == ("3", "1")


def test_json_numbers_are_float32s_shortest(world: World) -> None:
    text = world.get("/v1/embeddings/item/i1").text
    numbers = json.loads(text, parse_float=str)["vector"]
    assert all(len(n.lstrip("-0.")) <= 9 for n in numbers)


def test_user_events_change_the_users_vector_at_once(world: World) -> None:
    before = world.get("/v1/embeddings/user/u1").json()
    assert (before["source"], before["events"], before["known"]) == ("store", 5, True)
    world.writer.apply([("u1", "i7", 1.0)])
    after = world.get("/v1/embeddings/user/u1").json()
    assert after["events"] == 6
    assert after["step"] == before["step"] + len(range(5, 14)) + 1
    assert after["vector"] != before["vector"]


def test_item_changes_are_served_after_a_refresh(world: World) -> None:
    before = world.get("/v1/embeddings/item/i1").json()
    world.writer.apply([("u3", "i1", 1.0)])
    assert world.get("/v1/embeddings/item/i1").json()["step"] == before["step"]
    world.refresh()
    after = world.get("/v1/embeddings/item/i1").json()
    assert (after["step"], after["events"]) == (15, before["events"] + 1)
    assert after["vector"] != before["vector"]


@pytest.mark.parametrize(
    ("tower", "identity"),
    [("user", "u/slash é"), ("item", "a/b c"), ("user", "42"), ("item", "1001")],
)
def test_ids_with_slashes_spaces_unicode_and_digits(world: World, tower: str, identity: str) -> None:
    for safe in ("", "/"):
        answer = world.get(f"/v1/embeddings/{tower}/{quote(identity, safe=safe)}")
        assert answer.status_code == 200
        assert answer.json()["id"] == identity


@pytest.mark.parametrize(
    "identity",
    [
        "u//1",
        "/lead",
        "trail/",
        "%",
        "?x=1",
        "#",
        "..",
        "a:batch",
        "\x00",
        "\n",
        "a\nb\r\nc",
        "😀",
        "i1/",
        "00123",
        "x" * 512,
    ],
)
def test_odd_ids_that_nobody_has_are_404_as_themselves(world: World, identity: str) -> None:
    encoded = quote(identity, safe="").replace(".", "%2E")
    answer = world.get(f"/v1/embeddings/item/{encoded}")
    assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")
    assert answer.json()["id"] == identity


def test_an_unknown_id_may_ask_for_its_initial_vector(world: World) -> None:
    assert world.get("/v1/embeddings/item/new").status_code == 404
    body = world.get("/v1/embeddings/item/new?on_missing=initial").json()
    assert np.array_equal(np.array(body["vector"], np.float32), _stored(world, "new"))
    assert np.abs(body["vector"]).max() > 0
    assert (body["known"], body["source"], body["step"], body["age_s"], body["events"]) == (
        False,
        "initial",
        None,
        None,
        0,
    )
    user = world.get("/v1/embeddings/user/new?on_missing=initial").json()
    assert (user["known"], user["vector"]) == (False, [0.0] * 6)
    assert world.store.status("item")[0].rows + world.store.status("item")[1].rows == 9, "a lookup wrote"
    raw = world.get("/v1/embeddings/item/new?on_missing=initial", headers={"Accept": "application/octet-stream"})
    assert raw.headers["x-embedding-known"] == "0"
    assert "x-embedding-step" not in raw.headers


def test_a_row_with_nan_answers_as_missing_and_raises_an_alarm(world: World) -> None:
    live = world.service.live
    assert live is not None
    slot = live.mirror.slots(np.array([key_and_check(b"i1")[0]], np.uint64))
    live.mirror._vectors[slot, 2] = np.nan
    assert world.get("/v1/embeddings/item/i1").status_code == 404
    batch = world.post("/v1/embeddings/item:batch", {"ids": ["i1", "i2"], "format": "raw"})
    assert np.isfinite(np.frombuffer(batch.content, "<f4")).all()
    assert world.post("/v1/embeddings/item:batch", {"ids": ["i1", "i2"]}).json()["found"] == [False, True]
    assert 'towline_serving_nonfinite_rows_total{tower="item"} 3.0' in world.get("/metrics").text


def test_a_user_whose_items_hold_infinity_is_answered_with_popular_items(world: World) -> None:
    live = world.service.live
    assert live is not None
    live.mirror._vectors[live.mirror.slots(np.array([key_and_check(b"i4")[0]], np.uint64)), 0] = np.inf
    assert world.get("/v1/embeddings/user/u1").status_code == 404
    answer = world.post("/v1/recommend", {"user_id": "u1", "k": 10, "exclude_seen": False})
    assert answer.json()["strategy"] == "popular"
    assert world.service.metrics.nonfinite_rows() == {"user": 2, "item": 0}
    personal = world.post("/v1/recommend", {"user_id": "u2", "k": 10, "exclude_seen": False}).json()
    assert personal["strategy"] == "personal"
    assert "i4" not in [item["item_id"] for item in personal["items"]]


def test_dense_towers_answer_with_their_output_dim(make_world: MakeWorld) -> None:
    from tests.serving.conftest import MODEL

    world = make_world(model=MODEL.model_copy(update={"dense_layers": (5, 4)}))
    for path in ("item/i1", "user/u1", "item/new?on_missing=initial"):
        body = world.get(f"/v1/embeddings/{path}").json()
        assert (body["dim"], len(body["vector"])) == (4, 4)
