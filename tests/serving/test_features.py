"""Features of requests over HTTP: what they change, what is refused, and what is said of them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from embedding_store.memory import MemoryStore
from tests.serving.conftest import World, served
from tests.trainer.featured import learned
from tests.trainer.features import MODEL

PHONE = {"device": "phone", "tags": [1, 2]}


@pytest.fixture(scope="module")
def store() -> MemoryStore:
    """Learned by a worker."""
    return learned(300)


@pytest.fixture
def world(store: MemoryStore) -> Any:
    yield from served(store, MODEL)


def scores(answer: Any) -> dict[str, float]:
    assert answer.status_code == 200, answer.text
    return {item["item_id"]: item["score"] for item in answer.json()["items"]}


def test_a_request_is_answered_for_its_features(world: World) -> None:
    ask = {"user_id": 3, "k": 50, "exclude_seen": False}
    plain = scores(world.post("/v1/recommend", ask))
    phone = scores(world.post("/v1/recommend", ask | {"features": PHONE}))
    unknown = scores(world.post("/v1/recommend", ask | {"features": {"device": "fridge", "tags": []}}))
    assert plain.keys() == phone.keys()
    assert max(abs(plain[i] - phone[i]) for i in plain) > 0.01
    assert unknown == plain  # a value that nothing is known of adds nothing
    batch = world.post("/v1/recommend:batch", {"user_ids": [3, 12], "k": 50, "exclude_seen": False, "features": PHONE})
    (first, _) = batch.json()["results"]
    assert {i["item_id"]: i["score"] for i in first["items"]} == pytest.approx(phone, abs=1e-5)
    some = list(phone)[:3]
    scored = world.post("/v1/score", {"user_id": 3, "item_ids": some, "features": PHONE})
    assert scored.json()["scores"] == pytest.approx([phone[i] for i in some], abs=1e-5)
    chosen = scores(world.post("/v1/recommend", ask | {"features": PHONE, "candidates": some}))
    assert chosen == pytest.approx({i: phone[i] for i in some}, abs=1e-5)


def test_somebody_new_is_recommended_to_by_the_request_alone(world: World) -> None:
    body = world.post("/v1/recommend", {"user_id": "new", "features": PHONE}).json()
    assert (body["strategy"], body["cold_start"], body["user"]) == ("personal", False, None)
    body = world.post("/v1/recommend", {"user_id": "new"}).json()
    assert (body["strategy"], body["cold_start"]) == ("popular", True)


@pytest.mark.parametrize("path", ["/v1/recommend", "/v1/recommend:batch", "/v1/score", "/v1/explain"])
@pytest.mark.parametrize(
    ("features", "field", "said"),
    [
        ({"devise": "phone"}, "features.devise", "did you mean 'device'?"),
        ({"zzz": "phone"}, "features.zzz", "the model's features of requests are device, tags"),
        ({"age": 3}, "features.age", "'age' is no feature of requests"),
        ({"device": ["a"]}, "features", "device is a list of 1"),
        ({"device": ""}, "features", "device has 0 bytes"),
        ({"tags": ["a"] * 10_000}, "features", "tags holds 10000 categories; at most 64"),
        ({"device": 1.5}, "features", "device is 1.5; send a text or an integer"),
    ],
)
def test_what_can_not_be_a_feature_is_named(
    world: World, path: str, features: dict[str, Any], field: str, said: str
) -> None:
    if path == "/v1/explain":
        if len(str(features)) > 10_000:
            return  # longer than a query may be
        answer = world.get("/v1/explain", params={"user_id": "3", "item_id": "100", "features": _json(features)})
    else:
        who: dict[str, Any] = {"user_ids": [3]} if path.endswith("batch") else {"user_id": 3}
        who |= {"item_ids": [100]} if path.endswith("score") else {}
        answer = world.post(path, who | {"features": features})
    assert answer.status_code == 422, answer.text
    assert answer.json()["field"] == field
    assert said in answer.json()["detail"]


@pytest.mark.parametrize("features", [{"device": True}, {"device": {"a": 1}}, [1], "phone", {"tags": [[1]]}])
def test_what_is_no_value_at_all_is_refused_with_its_place(world: World, features: Any) -> None:
    answer = world.post("/v1/recommend", {"user_id": 3, "features": features})
    assert answer.status_code == 422
    assert answer.json()["field"].startswith("features")


def test_a_query_that_is_no_json_is_refused(world: World) -> None:
    answer = world.get("/v1/explain", params={"user_id": "3", "item_id": "100", "features": "{device"})
    assert answer.status_code == 422
    assert "features is no JSON object" in answer.json()["detail"]


def test_an_explanation_has_features_as_parts_of_their_own(world: World) -> None:
    ask = {"user_id": "3", "item_id": "105"}
    why = world.get("/v1/explain", params=ask | {"features": _json(PHONE)}).json()
    parts = why["parts"]
    assert {(f["name"], f["of"]) for f in parts["features"]} == {
        ("age", "user"), ("device", "request"), ("tags", "request"),
    }  # fmt: skip
    assert {f["name"] for f in parts["item"]["features"]} <= {"genre", "price"}
    assert parts["item"]["features"]
    dot = sum(c["score"] for c in parts["clocks"]) + sum(f["score"] for f in parts["features"])
    assert dot + parts["popularity"] == pytest.approx(why["score"], abs=1e-4)
    other = parts["item"]["row"] + sum(f["score"] for f in parts["item"]["features"])
    assert other == pytest.approx(dot, abs=1e-4)
    assert parts["item"]["dense_bias"] is None
    score = world.post("/v1/score", {"user_id": 3, "item_ids": [105], "features": PHONE}).json()["scores"][0]
    assert why["score"] == pytest.approx(score, abs=1e-5)


def test_the_document_names_the_features_that_are_served(world: World) -> None:
    document = world.get("/openapi.json").json()
    given = document["components"]["schemas"]["RecommendRequest"]["properties"]["features"]
    assert set(given["properties"]) == {"device", "tags"}
    assert given["additionalProperties"] is False


def test_an_item_without_events_starts_at_its_features(world: World) -> None:
    answer = world.get("/v1/embeddings/item/nobody", params={"on_missing": "initial"})
    assert answer.status_code == 200
    assert len(answer.json()["vector"]) == MODEL.dim


def _json(value: Any) -> str:
    return json.dumps(value)
