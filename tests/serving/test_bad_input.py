"""Bad input: each is refused with the right code, as a problem document that says where and what to do."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.serving.conftest import MakeWorld, World

JSON = {"Content-Type": "application/json"}
RECOMMEND, BATCH = "/v1/recommend", "/v1/embeddings/item:batch"
USERS, SIMILAR, SCORE = "/v1/recommend:batch", "/v1/similar", "/v1/score"
POSTS: dict[str, dict[str, Any]] = {
    RECOMMEND: {"user_id": "u1"},
    BATCH: {"ids": ["i1"]},
    USERS: {"user_ids": ["u1"]},
    SIMILAR: {"item_ids": ["i1"]},
    SCORE: {"user_id": "u1", "item_ids": ["i1"]},
}
"""Every route that takes a body, with one that is good."""


def check_problem(answer: Any, status: int) -> dict[str, Any]:
    """The answer is an RFC 9457 document of that status."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    document: dict[str, Any] = answer.json()
    assert document["status"] == status
    assert document["type"].startswith("urn:towline:problem:")
    assert document["title"]
    assert document["detail"]
    assert document["request_id"] == answer.headers["x-request-id"]
    return document


@pytest.mark.parametrize("inner", [b"[", b'{"a":[', b'{"a":{"min":['])
def test_what_is_nested_without_end_is_refused_where_it_begins(world: World, inner: bytes) -> None:
    answer = world.post(RECOMMEND, content=b'{"user_id":"u1","filter":' + inner + b"[" * 100_000, headers=JSON)
    assert check_problem(answer, 422)["field"].startswith("filter")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"nonsense",
        b'{"user_id":"u1","k":NaN}',
        b'{"user_id":"u1","k":Infinity}',
        b'{"user_id":NaN}',
        b'{"user_id":"u1"} trailing',
        b"{'user_id':'u1'}",
        b'{"user_id":"\xff\xfe"}',
        b'{"user_id":"\\ud800"}',
        b'\xef\xbb\xbf{"user_id":"u1"}',
        b"\x00",
    ],
)
@pytest.mark.parametrize("path", [RECOMMEND, BATCH])
def test_malformed_json_is_400(world: World, path: str, body: bytes) -> None:
    if path == BATCH:
        body = body.replace(b'"user_id"', b'"ids"')
    answer = world.post(path, content=body, headers=JSON)
    if path == BATCH and answer.status_code == 422:  # a scalar where a list belongs is noticed first
        assert b'"ids":"' in body or b'"ids":N' in body
        return
    assert check_problem(answer, 400)["type"].endswith("malformed-json")


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize("body", [b"", b"[" * 100_000, b'{"a":NaN}', b"{\xff}", b"\x00"])
def test_no_route_takes_malformed_json(world: World, path: str, body: bytes) -> None:
    answer = world.post(path, content=body, headers=JSON)
    assert answer.status_code in (400, 422)
    check_problem(answer, answer.status_code)


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        (RECOMMEND, [], ""),
        (RECOMMEND, {}, "user_id"),
        (RECOMMEND, {"user_id": None}, "user_id"),
        (RECOMMEND, {"user_id": True}, "user_id"),
        (RECOMMEND, {"user_id": 1.5}, "user_id"),
        (RECOMMEND, {"user_id": ""}, "user_id"),
        (RECOMMEND, {"user_id": "x" * 513}, "user_id"),
        (RECOMMEND, {"user_id": "é" * 257}, "user_id"),
        (RECOMMEND, {"user_id": "u1", "k": 0}, "k"),
        (RECOMMEND, {"user_id": "u1", "k": -1}, "k"),
        (RECOMMEND, {"user_id": "u1", "k": 1001}, "k"),
        (RECOMMEND, {"user_id": "u1", "k": 10**9}, "k"),
        (RECOMMEND, {"user_id": "u1", "k": 10**18}, "k"),
        *[(path, POSTS[path] | {"k": k}, "k") for path in (USERS, SIMILAR) for k in (0, -1, 1001, 10**9, 2.5, "5")],
        *[(path, POSTS[path] | {"exclude": ["a", ""]}, "exclude[1]") for path in (USERS, SIMILAR)],
        *[(path, POSTS[path] | {"candidates": "i1"}, "candidates") for path in (USERS, SIMILAR)],
        *[(path, POSTS[path] | {"nonsense": 1}, "nonsense") for path in POSTS],
        (USERS, {}, "user_ids"),
        (USERS, {"user_ids": ["u1", "x" * 513]}, "user_ids[1]"),
        (USERS, {"user_ids": ["u1"], "fallback": "random"}, "fallback"),
        (USERS, {"user_ids": ["u1"], "filter": {"a": 1}}, "filter.a"),
        *[(path, POSTS[path] | {"filter": [1]}, "filter") for path in (RECOMMEND, USERS, SIMILAR)],
        (SIMILAR, {"item_ids": []}, "item_ids"),
        (SIMILAR, {"item_ids": "i1"}, "item_ids"),
        (SIMILAR, {"item_ids": ["i1", ""]}, "item_ids[1]"),
        (SCORE, {"item_ids": ["i1"]}, "user_id"),
        (SCORE, {"user_id": "", "item_ids": ["i1"]}, "user_id"),
        (SCORE, {"user_id": "u1", "item_ids": [None]}, "item_ids[0]"),
        (SCORE, {"user_id": "u1", "item_ids": [], "fallback": None}, "fallback"),
        (RECOMMEND, {"user_id": "u1", "k": "5"}, "k"),
        (RECOMMEND, {"user_id": "u1", "k": 2.5}, "k"),
        (RECOMMEND, {"user_id": "u1", "exclude": "i1"}, "exclude"),
        (RECOMMEND, {"user_id": "u1", "exclude": ["a", ""]}, "exclude[1]"),
        (RECOMMEND, {"user_id": "u1", "exclude": ["a", None]}, "exclude[1]"),
        (RECOMMEND, {"user_id": "u1", "candidates": ["x" * 513]}, "candidates[0]"),
        (RECOMMEND, {"user_id": "u1", "exclude_seen": "yes"}, "exclude_seen"),
        (RECOMMEND, {"user_id": "u1", "fallback": "random"}, "fallback"),
        (RECOMMEND, {"user_id": "u1", "exclud": []}, "exclud"),
        (BATCH, {}, "ids"),
        (BATCH, {"ids": "i1"}, "ids"),
        (BATCH, {"ids": ["ok", ""]}, "ids[1]"),
        (BATCH, {"ids": ["x" * 513]}, "ids[0]"),
        (BATCH, {"ids": [{}]}, "ids[0]"),
        (BATCH, {"ids": [1.0]}, "ids[0]"),
        (BATCH, {"ids": [], "format": "xml"}, "format"),
        (BATCH, {"ids": [], "on_missing": "ignore"}, "on_missing"),
        (BATCH, {"ids": [], "nonsense": 1}, "nonsense"),
    ],
)
def test_well_formed_but_invalid_is_422_with_the_field(world: World, path: str, body: Any, field: str) -> None:
    answer = world.post(path, content=json.dumps(body).encode(), headers=JSON)
    assert check_problem(answer, 422)["field"] == field


def test_a_misspelt_field_names_its_nearest_neighbour(world: World) -> None:
    detail = world.post(RECOMMEND, {"user_id": "u1", "exclud_seen": True}).json()["detail"]
    assert "did you mean 'exclude_seen'?" in detail


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1/embeddings/item/", 422),
        ("/v1/embeddings/item/" + "x" * 513, 422),
        ("/v1/embeddings/item/%ff", 422),
        ("/v1/embeddings/item/i1?on_missing=null", 422),
        ("/v1/embeddings/shop/i1", 404),
        ("/v1/embeddings/item", 404),
        ("/v1/embeddings/", 404),
        ("/v1", 404),
        ("/", 404),
        ("/v1/model/", 404),
        ("/favicon.ico", 404),
    ],
)
def test_paths(world: World, path: str, status: int) -> None:
    check_problem(world.get(path), status)


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("POST", "/v1/embeddings/item/i1", "GET"),
        ("DELETE", "/v1/embeddings/item/i1", "GET"),
        ("PUT", "/v1/embeddings/item:batch", "POST"),
        ("GET", "/v1/recommend", "POST"),
        ("POST", "/v1/model", "GET"),
        ("POST", "/livez", "GET"),
        ("BREW", "/docs", "GET"),
    ],
)
def test_wrong_method_is_405_and_says_which(world: World, method: str, path: str, allowed: str) -> None:
    answer = world.request(method, path)
    assert allowed in check_problem(answer, 405)["detail"]
    assert allowed in answer.headers["allow"]


def test_unknown_tower_in_a_batch_is_404(world: World) -> None:
    check_problem(world.post("/v1/embeddings/shop:batch", {"ids": []}), 404)


@pytest.mark.parametrize("accept", ["text/html", "image/png", "application/xml"])
def test_wrong_accept_is_406(world: World, accept: str) -> None:
    check_problem(world.get("/v1/embeddings/item/i1", headers={"Accept": accept}), 406)


@pytest.mark.parametrize(
    "media_type", ["text/plain", "application/x-www-form-urlencoded", "application/msgpack", "nonsense", ""]
)
@pytest.mark.parametrize("path", POSTS)
def test_wrong_content_type_is_415(world: World, path: str, media_type: str) -> None:
    answer = world.post(path, content=json.dumps(POSTS[path]).encode(), headers={"Content-Type": media_type})
    check_problem(answer, 415)


@pytest.mark.parametrize("path", POSTS)
def test_ids_may_hold_anything(make_world: MakeWorld, path: str) -> None:
    name = 'a/../b?#%2F \n\r\t\u0000\u2028 🛰️é"\\'
    world = make_world(events=[(name, name, 1.0)])
    body = {field: name if field == "user_id" else [name, "nope", "\U0001f680\n/"] for field in POSTS[path]}
    answer = world.post(path, body)
    assert answer.status_code == 200, answer.text
    given = answer.json()
    if path == USERS:
        assert given["results"][0]["user_id"] == name
    if path == SIMILAR:
        assert given["missing"] == ["nope", "\U0001f680\n/"]
    if path in (BATCH, SCORE):
        assert given["found"] == [True, False, False]


def test_ten_thousand_ids_are_413_on_every_route(world: World) -> None:
    for path, body in POSTS.items():
        for field in [*body, *(["exclude", "candidates"] if path in (RECOMMEND, USERS, SIMILAR) else [])]:
            if field == "user_id":
                continue
            answer = world.post(path, body | {field: [f"i{n}" for n in range(10_000)]})
            document = check_problem(answer, 413)
            assert (document["field"], document["max"]) == (field, 64 if field == "user_ids" else 4096)


@pytest.mark.parametrize(
    "media_type",
    ["application/json", "application/json; charset=utf-8", "APPLICATION/JSON", "application/vnd.x+json", None],
)
def test_json_content_types_are_taken(world: World, media_type: str | None) -> None:
    headers = {} if media_type is None else {"Content-Type": media_type}
    assert world.post(RECOMMEND, content=b'{"user_id":"u1"}', headers=headers).status_code == 200


@pytest.mark.parametrize(("path", "field"), [(BATCH, "ids"), (RECOMMEND, "exclude"), (RECOMMEND, "candidates")])
def test_too_many_ids_are_413(make_world: MakeWorld, path: str, field: str) -> None:
    world = make_world(max_batch=10)
    body: dict[str, Any] = {field: ["i1"] * 11} | ({} if field == "ids" else {"user_id": "u1"})
    assert check_problem(world.post(path, body), 413)["max"] == 10
    body[field] = ["i1"] * 10
    assert world.post(path, body).status_code == 200


class _Stream:
    """A body without an announced length; counts what was taken of it."""

    def __init__(self, chunks: int) -> None:
        self.chunks, self.taken = chunks, 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for _ in range(self.chunks):
            self.taken += 1
            yield b" " * 1024


def test_a_body_over_the_cap_is_413_by_its_announced_length(make_world: MakeWorld) -> None:
    world = make_world(max_body_bytes=4096)
    padded = b'{"user_id":"u1"' + b" " * 5000 + b"}"
    assert check_problem(world.post(RECOMMEND, content=padded, headers=JSON), 413)["max_body_bytes"] == 4096
    fits = b'{"user_id":"u1"' + b" " * 4000 + b"}"
    assert world.post(RECOMMEND, content=fits, headers=JSON).status_code == 200
    lying = world.post(RECOMMEND, content=b"{}", headers=JSON | {"Content-Length": "9" * 30})
    check_problem(lying, 413)


@pytest.mark.parametrize("headers", [JSON, JSON | {"Content-Length": "10"}])
def test_a_streamed_body_over_the_cap_is_413_without_reading_on(make_world: MakeWorld, headers: dict[str, str]) -> None:
    world = make_world(max_body_bytes=4096)
    stream = _Stream(1000)
    check_problem(world.post(RECOMMEND, content=stream, headers=headers), 413)
    assert stream.taken < 10


def test_a_body_that_never_ends_arriving_is_408(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    import asyncio

    monkeypatch.setattr("serving.body._READ_S", 0.05)

    async def trickle() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.Event().wait()

    check_problem(world.post(RECOMMEND, content=trickle(), headers=JSON), 408)
