"""Embeddings of many ids."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest

from embedding_store.contract import F32
from tests.serving.conftest import MakeWorld, World

IDS = ["i1", "nobody", 1001, "i1", "a/b c"]


def _singles(world: World, tower: str = "item") -> dict[str, Any]:
    return {str(i): world.get(f"/v1/embeddings/{tower}/{i}").json() for i in IDS if i != "nobody"}


def test_json_has_each_row_in_the_order_of_the_ids(world: World) -> None:
    answer = world.post("/v1/embeddings/item:batch", {"ids": IDS})
    assert answer.status_code == 200
    body = answer.json()
    assert (body["dim"], body["dtype"], body["found"]) == (6, "float32-le", [True, False, True, True, True])
    singles = _singles(world)
    for i, identity in enumerate(IDS):
        if identity == "nobody":
            assert [body[name][i] for name in ("step", "age_s", "events", "vectors")] == [None, None, 0, None]
        else:
            one = singles[str(identity)]
            assert [body[name][i] for name in ("step", "events")] == [one["step"], one["events"]]
            assert body["vectors"][i] == one["vector"]
            assert abs(body["age_s"][i] - one["age_s"]) < 10
    assert body["as_of"] == "2023-11-14T22:13:20.014Z"


def test_base64_and_raw_hold_the_same_bytes_as_json(world: World) -> None:
    as_json = world.post("/v1/embeddings/item:batch", {"ids": IDS}).json()
    as_text = world.post("/v1/embeddings/item:batch", {"ids": IDS, "format": "base64"}).json()
    raw = world.post("/v1/embeddings/item:batch", {"ids": IDS, "format": "raw"})
    assert raw.headers["content-type"] == "application/octet-stream"
    rows = np.frombuffer(raw.content, "<f4").reshape(len(IDS), 6)
    assert not rows[1].any()
    for i, vector in enumerate(as_json["vectors"]):
        if vector is None:
            assert as_text["vectors"][i] is None
        else:
            expected: F32 = np.array(vector, np.float32)
            assert np.array_equal(rows[i], expected)
            assert base64.b64decode(as_text["vectors"][i]) == expected.tobytes()
    assert {name: as_text[name] for name in ("found", "step")} == {name: as_json[name] for name in ("found", "step")}
    bitmap = np.frombuffer(base64.b64decode(raw.headers["x-embedding-found"]), np.uint8)
    assert np.unpackbits(bitmap, count=len(IDS), bitorder="little").astype(bool).tolist() == as_json["found"]
    assert (raw.headers["x-embedding-dim"], raw.headers["x-embedding-count"]) == ("6", "5")
    assert int(raw.headers["x-embedding-step"]) == min(step for step in as_json["step"] if step is not None)
    assert int(raw.headers["x-embedding-age-ms"]) >= 0


@pytest.mark.parametrize("tower", ["item", "user"])
@pytest.mark.parametrize("form", ["json", "base64", "raw"])
@pytest.mark.parametrize("ids", [[], ["nobody"], ["nobody"] * 3])
def test_nothing_found_or_nothing_asked(world: World, tower: str, form: str, ids: list[str]) -> None:
    answer = world.post(f"/v1/embeddings/{tower}:batch", {"ids": ids, "format": form})
    assert answer.status_code == 200
    if form == "raw":
        assert answer.content == bytes(4 * 6 * len(ids))
    else:
        assert answer.json()["vectors"] == [None] * len(ids)


def test_missing_may_be_filled_with_initial_vectors(world: World) -> None:
    body = world.post("/v1/embeddings/item:batch", {"ids": IDS, "on_missing": "initial"}).json()
    assert body["found"] == [True, False, True, True, True]
    assert body["vectors"][1] == world.get("/v1/embeddings/item/nobody?on_missing=initial").json()["vector"]
    assert (body["step"][1], body["age_s"][1]) == (None, None)
    users = world.post("/v1/embeddings/user:batch", {"ids": ["u1", "x"], "on_missing": "initial"}).json()
    assert users["vectors"][1] == [0.0] * 6


def test_missing_may_be_an_error_that_names_them(world: World) -> None:
    answer = world.post("/v1/embeddings/item:batch", {"ids": IDS, "on_missing": "error"})
    assert answer.status_code == 404
    assert answer.json()["missing"] == ["nobody"]
    assert world.post("/v1/embeddings/item:batch", {"ids": ["i1"], "on_missing": "error"}).status_code == 200


def test_users_are_read_from_the_store_with_repeats(world: World) -> None:
    body = world.post("/v1/embeddings/user:batch", {"ids": ["u1", 42, "u1", "42"]}).json()
    assert body["found"] == [True] * 4
    assert body["vectors"][0] == body["vectors"][2] == world.get("/v1/embeddings/user/u1").json()["vector"]
    assert body["vectors"][1] == body["vectors"][3]
    assert body["events"] == [5, 1, 5, 1]


def test_a_large_batch_equals_small_ones(make_world: MakeWorld) -> None:
    world = make_world(events=[("u", f"i{n}", 1.0) for n in range(50)])
    ids = [f"i{n}" for n in range(50)] + ["x"]
    large = world.post("/v1/embeddings/item:batch", {"ids": ids}).json()
    small = [world.post("/v1/embeddings/item:batch", {"ids": [i]}).json() for i in ids]
    assert large["vectors"] == [body["vectors"][0] for body in small]
    assert large["step"] == [body["step"][0] for body in small]
