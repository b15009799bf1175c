"""Both clients against a real server: each route, each kind of error, and when a request is sent again."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import httpx
import numpy as np
import pytest

from serving.errors import StreamAway
from serving.ranking_schemas import Interaction
from serving.service import Service
from serving.settings import ServingSettings
from tests.servers import free_port
from tests.serving.conftest import MODEL, MakeWorld, World, load
from tests.serving.test_refresher import until
from tests.towline_client.conftest import listening
from towline_client import (
    AsyncClient,
    Client,
    Event,
    Invalid,
    NotFound,
    Retry,
    TooLarge,
    Unauthorized,
    Unavailable,
    Unexpected,
    Unreachable,
)

UrlOf = Callable[[World], str]
ONCE = Retry(attempts=1)


class Both:
    """Calls the sync client, then the async one, and holds them to the same kind of answer."""

    def __init__(self, url: str, **options: Any) -> None:
        self._url, self._options = url, options

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*positional: Any, **named: Any) -> Any:
            async def awaited() -> Any:
                async with AsyncClient(self._url, **self._options) as client:
                    return await getattr(client, name)(*positional, **named)

            with Client(self._url, **self._options) as client:
                answers = [_outcome(lambda: getattr(client, name)(*positional, **named))]
            answers.append(_outcome(lambda: asyncio.run(awaited())))
            (kind, answer), (other_kind, _) = answers
            assert kind is other_kind
            if isinstance(answer, Exception):
                raise answer
            return answer

        return call


def _outcome(call: Callable[[], Any]) -> tuple[type, Any]:
    try:
        answer = call()
    except Exception as error:  # noqa: BLE001  compared with what the other client does
        return type(error), error
    return type(answer), answer


def test_every_route(make_world: MakeWorld, url_of: UrlOf) -> None:
    world = make_world()
    client = Both(url_of(world))
    row = client.embedding("item", "a/b c")
    stored = world.get("/v1/embeddings/item/a%2Fb%20c").json()
    assert (row.id, row.dim, row.known, row.source, row.stale) == ("a/b c", MODEL.dim, True, "mirror", False)
    assert row.vector.dtype == np.float32
    assert row.vector.tolist() == np.array(stored["vector"], np.float32).tolist()
    assert client.embedding("user", "nobody", on_missing="initial").known is False
    batch = client.embeddings("item", ["a/b c", "nope", 1001])
    assert batch.found == [True, False, True]
    assert batch.vectors[1] is None
    assert np.array_equal(batch.vectors[0], row.vector)
    best = client.recommend("u1", k=3, exclude=["i9"], exclude_seen=True)
    assert (len(best.items), best.strategy, best.user.events) == (3, "personal", 5)
    chosen = client.recommend("u1", candidates=[best.items[1].item_id, "nope"])
    assert [item.item_id for item in chosen.items] == [best.items[1].item_id]
    results = client.recommend_batch(["u1", "new"], k=3).results
    assert [item.item_id for item in results[0].items] == [item.item_id for item in best.items]
    assert results[1].cold_start
    assert [item.score for item in client.similar(["i1"], k=2).items] == sorted(
        (item.score for item in client.similar(["i1"], k=2).items), reverse=True
    )
    ids = [item.item_id for item in best.items]
    assert client.score("u1", [*ids, "nope"]).scores == [*(item.score for item in best.items), None]
    why = client.explain("u1", ids[0])
    assert (why.rank, why.score) == (1.0, best.items[0].score)
    assert why.parts.clocks[0].recency == MODEL.clocks[0]
    assert sum(part.score for part in why.history) == pytest.approx(sum(c.score for c in why.parts.clocks), abs=1e-5)
    model = client.model()
    assert (model.version, model.dim, model.index.size) == (best.model_version, MODEL.dim, 9)
    assert dataclasses.is_dataclass(model)


@pytest.mark.parametrize("name", ["u/slash é", "..", ".", "a/../b", "line\nfeed", "🛰️ %2F?#", "50%", " ", "x" * 512])
def test_any_id_finds_its_way(make_world: MakeWorld, url_of: UrlOf, name: str) -> None:
    client = Both(url_of(make_world(events=[(name, name, 1.0)])))
    assert client.embedding("item", name).id == name
    assert client.embedding("user", name).events == 1
    assert client.explain(name, name).item_id == name


def test_problems_are_typed_and_tell_where_and_why(make_world: MakeWorld, url_of: UrlOf) -> None:
    client = Both(url_of(make_world(max_batch=2)), retry=ONCE)
    with pytest.raises(NotFound) as missing:
        client.embedding("item", "nope")
    assert (missing.value.kind, missing.value.status, missing.value.document["id"]) == ("unknown-id", 404, "nope")
    assert missing.value.request_id in str(missing.value)
    with pytest.raises(Invalid, match="k is at most 1000") as invalid:
        client.recommend("u1", k=10**9)
    assert invalid.value.field == "k"
    with pytest.raises(TooLarge):
        client.embeddings("item", ["a", "b", "c"])
    with pytest.raises(NotFound, match=r"serving\.events"):
        client.send_events([Event("u1", "i1")])
    with pytest.raises(NotFound) as cold:
        client.recommend("new", fallback="error")
    assert cold.value.kind == "cold-user"


def test_the_key_goes_along(make_world: MakeWorld, url_of: UrlOf) -> None:
    url = url_of(make_world(api_keys=["sesame"]))
    assert Both(url, api_key="sesame").model().dim == MODEL.dim
    with pytest.raises(Unauthorized):
        Both(url).model()


def test_no_answer_and_answers_of_others() -> None:
    with pytest.raises(Unreachable, match="did not answer"):
        Both(f"http://127.0.0.1:{free_port()}", retry=Retry(attempts=2, first_wait_s=0.01)).model()
    for answer in (
        httpx.Response(502, text="<html>"),
        httpx.Response(200, text="<html>"),
        httpx.Response(200, json=[]),
    ):
        transport = httpx.MockTransport(lambda _, answer=answer: answer)
        with Client("http://proxy", transport=transport, retry=ONCE) as client, pytest.raises(Unexpected):
            client.model()
    other_release = httpx.MockTransport(lambda _: httpx.Response(200, json={"version": "1"}))
    with Client("http://other", transport=other_release) as client, pytest.raises(Unexpected, match="spec, dim"):
        client.model()


def test_503_is_tried_again_once_the_service_says_so(make_world: MakeWorld, url_of: UrlOf) -> None:
    """Nothing is loaded yet: the first try is refused with Retry-After: 1; meanwhile the model comes."""
    world = make_world(loaded=False)
    url = url_of(world)

    def come() -> None:
        until(lambda: world.service.metrics.requests.get(("/v1/model", 503)), "a refused request")
        load(world.service, world.store, MODEL)

    thread = threading.Thread(target=come)
    thread.start()
    started = time.monotonic()
    with Client(url) as client:
        assert client.model().dim == MODEL.dim
    assert time.monotonic() - started >= 1
    thread.join()
    assert world.service.metrics.requests["/v1/model", 503] == 1


def test_retries_end_and_the_last_problem_is_raised(make_world: MakeWorld, url_of: UrlOf) -> None:
    world = make_world(loaded=False)
    client = Both(url_of(world), retry=Retry(attempts=2))
    with pytest.raises(Unavailable) as refused:
        client.model()
    assert (refused.value.kind, refused.value.retry_after_s) == ("loading", 1.0)
    assert world.service.metrics.requests["/v1/model", 503] == 4
    impatient = Both(url_of(world), retry=Retry(max_wait_s=0.5))
    with pytest.raises(Unavailable):
        impatient.model()
    assert world.service.metrics.requests["/v1/model", 503] == 6, "it was asked to wait longer than it would"


def test_429_is_tried_again_too() -> None:
    waits: list[float] = []
    problem = {"type": "urn:x:problem:rate", "title": "x", "status": 429, "detail": "slower", "request_id": "r"}

    def gateway(request: httpx.Request) -> httpx.Response:
        waits.append(time.monotonic())
        return httpx.Response(429, json=problem, headers={"Retry-After": "0"})

    transport, retry = httpx.MockTransport(gateway), Retry(attempts=3)
    with (
        Client("http://gateway", transport=transport, retry=retry) as client,
        pytest.raises(Unavailable, match="slower"),
    ):
        client.model()
    assert len(waits) == 3


class Stuck:
    """Takes nothing."""

    def __init__(self) -> None:
        self.asked = 0

    def produce(self, events: Sequence[Interaction]) -> None:
        self.asked += 1
        raise StreamAway("nobody there")

    def close(self) -> None:
        """Nothing is open."""


class Taking(Stuck):
    """Takes everything."""

    def produce(self, events: Sequence[Interaction]) -> None:
        self.asked += len(events)


def test_events_are_sent_and_never_twice(make_world: MakeWorld) -> None:
    stuck, taking = Stuck(), Taking()
    with listening(Service(ServingSettings(events=True), events=stuck)) as url, Client(url) as client:
        with pytest.raises(Unavailable) as away:
            client.send_events([Event("u1", "i1")])
        assert (away.value.kind, stuck.asked) == ("stream-away", 1)
    with listening(Service(ServingSettings(events=True), events=taking)) as url:
        events = [Event("u1", 7, label=0), Event("u1", "i1", timestamp="2026-01-31T12:00:00Z")]
        assert Both(url).send_events(events) == 2
        assert taking.asked == 4


def test_both_clients_have_the_same_methods() -> None:
    def methods(kind: type) -> dict[str, Any]:
        found = inspect.getmembers(kind, inspect.isfunction)
        return {name: inspect.signature(f).parameters for name, f in found if not name.startswith("_")}

    assert methods(Client) == methods(AsyncClient)
