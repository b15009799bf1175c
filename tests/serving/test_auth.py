"""The API key."""

from __future__ import annotations

import hmac

import pytest

from serving.app import routes
from tests.serving.conftest import MakeWorld
from tests.serving.test_bad_input import check_problem

KEYS = ("first-key", "second-key")


def test_any_of_the_keys_opens_and_nothing_else_does(make_world: MakeWorld) -> None:
    world = make_world(api_keys=KEYS)
    for key in KEYS:
        assert world.get("/v1/model", headers={"X-API-Key": key}).status_code == 200
    for key in ("", "first-ke", "first-key ", "FIRST-KEY", "first-keysecond-key", "é"):
        answer = world.get("/v1/model", headers={"X-API-Key": key.encode()})
        if key == "first-key ":
            continue  # surrounding spaces aren't part of a header's value
        check_problem(answer, 401)
        assert answer.headers["www-authenticate"]
    check_problem(world.get("/v1/model"), 401)
    both = [("X-API-Key", KEYS[0]), ("X-API-Key", "wrong")]
    check_problem(world.get("/v1/model", headers=both), 401)


def test_all_but_probes_need_a_key(make_world: MakeWorld) -> None:
    world = make_world(api_keys=KEYS)
    for route in routes(world.service):
        status = world.get(route.path_format).status_code
        assert (status == 200) if route.path in ("/livez", "/readyz", "/dashboard") else (status == 401), route.path
    check_problem(world.get("/no/such/path"), 401)


def test_docs_can_be_opened_to_browsers(make_world: MakeWorld) -> None:
    world = make_world(api_keys=KEYS, docs_without_key=True)
    assert world.get("/docs").status_code == world.get("/openapi.json").status_code == 200
    check_problem(world.get("/v1/model"), 401)


def test_every_key_is_compared_in_constant_time(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world = make_world(api_keys=KEYS)
    compared: list[bytes] = []

    def spy(a: bytes, b: bytes) -> bool:
        compared.append(a)
        return a == b

    monkeypatch.setattr(hmac, "compare_digest", spy)
    world.get("/v1/model", headers={"X-API-Key": KEYS[0]})
    assert compared == [key.encode() for key in KEYS]


def test_on_loopback_without_keys_all_is_open(make_world: MakeWorld) -> None:
    assert make_world().get("/v1/model").status_code == 200
