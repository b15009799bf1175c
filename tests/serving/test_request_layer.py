"""Request ids, the last resort, back-pressure, and what reaches the log."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import httpx
import pytest

from tests.serving.conftest import MakeWorld, World
from tests.serving.test_bad_input import check_problem


@pytest.mark.parametrize("path", ["/livez", "/v1/embeddings/item/i1", "/v1/embeddings/item/none", "/nowhere"])
def test_the_callers_request_id_is_kept(world: World, path: str) -> None:
    assert world.get(path, headers={"X-Request-Id": "req/42:a-B_c.d~e"}).headers["x-request-id"] == "req/42:a-B_c.d~e"


@pytest.mark.parametrize("name", ["", " ", "with space", "é", "<script>", '"', "x" * 129, "a\tb"])
def test_an_insane_request_id_is_replaced(world: World, name: str) -> None:
    answer = world.get("/livez", headers={"X-Request-Id": name.encode()})
    assert answer.headers["x-request-id"] != name
    assert answer.headers["x-request-id"]


def test_generated_request_ids_differ(world: World) -> None:
    assert world.get("/livez").headers["x-request-id"] != world.get("/livez").headers["x-request-id"]


def test_a_bug_is_a_problem_document_and_one_safe_log_line(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("row of i1\nFORGED LINE")

    live = world.service.live
    assert live is not None
    monkeypatch.setattr(live.mirror, "items", broken)
    answer = world.get("/v1/embeddings/item/i1%0AFORGED%1b[31m")
    document = check_problem(answer, 500)
    assert "FORGED" not in answer.text, "details of a bug are for the log"
    (record,) = [r for r in caplog.records if r.levelno >= logging.ERROR]
    assert document["request_id"] in record.getMessage()
    assert "\nFORGED" not in record.getMessage()
    assert "\x1b" not in record.getMessage()
    assert "broken" in record.getMessage(), "the place is logged"


def test_too_many_requests_in_flight_are_told_to_retry_but_probes_are_answered(make_world: MakeWorld) -> None:
    world = make_world(max_in_flight=1)
    world.service.metrics.in_flight = 1
    answer = world.get("/v1/model")
    assert check_problem(answer, 503)["type"].endswith("busy")
    assert int(answer.headers["retry-after"]) >= 1
    assert world.get("/livez").status_code == world.get("/readyz").status_code == 200


def test_a_full_queue_is_503_while_the_loop_stays_responsive(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the only thread stuck in the store and no queue, others are refused at once and items still answered."""
    import threading

    world = make_world(threads=1, max_queue=0)
    entered, release = threading.Event(), threading.Event()
    live = world.service.live
    assert live is not None
    users = live.ranker.users

    def stuck(keys: Any, *request: Any) -> Any:
        entered.set()
        assert release.wait(10)
        return users(keys, *request)

    monkeypatch.setattr(live.ranker, "users", stuck)

    async def scene() -> tuple[httpx.Response, ...]:
        transport = httpx.ASGITransport(app=world.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            first = asyncio.create_task(client.post("/v1/recommend", json={"user_id": "u1"}))
            await asyncio.to_thread(entered.wait, 10)
            refused = await client.post("/v1/recommend", json={"user_id": "u2"})
            item = await client.get("/v1/embeddings/item/i1")
            metrics = await client.get("/metrics")
            release.set()
            return await first, refused, item, metrics

    first, refused, item, metrics = asyncio.run(scene())
    assert first.status_code == item.status_code == metrics.status_code == 200
    check_problem(refused, 503)
    assert refused.headers["retry-after"]
    assert "towline_serving_offload_refused_total 1.0" in metrics.text
    assert world.service.offload.pending == 0


def test_a_client_that_goes_away_gives_its_place_back(make_world: MakeWorld) -> None:
    world = make_world(threads=1, max_queue=0)

    async def scene() -> None:
        transport = httpx.ASGITransport(app=world.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            task = asyncio.create_task(client.post("/v1/recommend", json={"user_id": "u1"}))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            async with asyncio.timeout(10):
                while world.service.offload.pending:
                    await asyncio.sleep(0.001)
            assert (await client.post("/v1/recommend", json={"user_id": "u1"})).status_code == 200

    asyncio.run(scene())
    assert world.service.metrics.in_flight == 0


def test_an_item_lookup_does_not_wait_on_the_loop_for_a_held_mirror(world: World) -> None:
    """While a refresh holds the mirror's lock, the lookup waits on a thread and the loop goes on."""
    import threading

    live = world.service.live
    assert live is not None
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with live.mirror.lock:
            held.set()
            release.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(10)

    async def scene() -> httpx.Response:
        transport = httpx.ASGITransport(app=world.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            lookup = asyncio.create_task(client.get("/v1/embeddings/item/i1"))
            assert (await client.get("/livez")).status_code == 200
            assert not lookup.done()
            release.set()
            return await lookup

    answer = asyncio.run(scene())
    thread.join()
    assert answer.status_code == 200


def test_head_answers_like_get(world: World) -> None:
    assert world.request("HEAD", "/v1/embeddings/item/i1").status_code == 200
