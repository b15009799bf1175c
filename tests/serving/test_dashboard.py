"""The dashboard in a real browser, on a real service over a real Redis; and what feeds it."""

from __future__ import annotations

import asyncio
import http.client
import json
import signal
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serving.dashboard.looking import Looker
from serving.dashboard.routes import DashboardRoutes, page
from serving.dashboard.sampled import SampledItems
from serving.dashboard.trainers import look
from tests.servers import RedisServer
from tests.serving.chromium import Tab, tab
from tests.serving.conftest import MakeWorld, World, Writer
from tests.serving.test_bad_input import check_problem
from tests.serving.test_process import fill, redis, serving  # noqa: F401 - a fixture
from tests.serving.test_refresher import until
from trainer.metrics import Metrics


class Trainer:
    """A trainer's metrics as it exposes them, without the training."""

    def __init__(self) -> None:
        self.metrics = Metrics()
        self.port = self.metrics.serve("127.0.0.1", 0)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/metrics"

    def learned(self, loss: float, hit_rate: float) -> None:
        self.metrics.batches.inc()
        self.metrics.loss.set(loss)
        self.metrics.recent.labels("model").set(hit_rate)
        self.metrics.recent.labels("popularity").set(hit_rate / 2)


@contextmanager
def writing(writer: Writer, trainer: Trainer) -> Iterator[None]:
    """Events several times a second, and a trainer that learns from them."""
    over = threading.Event()
    failed: list[BaseException] = []

    def write() -> None:
        try:
            for n in range(100_000):
                writer.apply([(f"u{n % 5}", f"i{n % 9}", 1.0), (f"u{n % 3}", f"i{n % 30}", 1.0)])
                trainer.learned(3.0 / (1 + n / 20), 0.1 + n / 1e4)
                if over.wait(0.1):
                    return
        except BaseException as error:
            failed.append(error)
            raise

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    assert not failed


@pytest.mark.servers
def test_in_a_browser(tmp_path: Path, redis: RedisServer) -> None:  # noqa: F811 - the fixture
    trainer, writer = Trainer(), fill(redis)
    urls = [trainer.url]
    with serving(tmp_path, redis.url, trainer_metrics=urls) as service, writing(writer, trainer):
        until(lambda: not service.reasons(), "ready", 90)  # may be the first to compile kernels
        with tab(tmp_path, f"{service.url}/dashboard") as browser:
            browser.until("document.body.dataset.looks > 3", "looks arrive")
            _shows(browser)
            _looks_up(browser)
            _recommends(browser)
            _is_used_by_keyboard(browser)
            for width in (390, 1280):
                for scheme in ("dark", "light"):
                    browser.size(width, 900, phone=width == 390)
                    browser.scheme(scheme)
                    browser.until("new Promise(d => setTimeout(() => d(true), 150))", "drawn anew")
                    assert browser.run("document.documentElement.scrollWidth") <= width, "nothing is cut off"
            assert browser.problems == []
            service.signal(signal.SIGTERM)
            assert service.exit_code() == 0, "an open dashboard does not hold the process"
        assert "Traceback" not in service.log.read_text()
    writer.store.close()


def _shows(browser: Tab) -> None:
    assert browser.run("document.getElementById('state').textContent") == "ready, fresh"
    step = browser.run("document.querySelector('#cards dd').textContent")
    browser.until(f"document.querySelector('#cards dd').textContent != {json.dumps(step)}", "the step moves")
    for plot, value in (("loss", "data.loss[1]"), ("hits", "data.hits[1]"), ("events", "data.events[1]")):
        browser.until(f"new Set({value}.filter(v => v != null)).size > 2", f"the curve of {plot} moves")
        assert browser.run(f"document.querySelector('#{plot} canvas').width") > 100
        assert browser.run(f"document.querySelector('#{plot} .empty').hidden")
        inked = f"document.querySelector('#{plot} canvas')"
        drawn = f"{inked}.getContext('2d').getImageData(0, 0, {inked}.width, {inked}.height).data.some(v => v)"
        assert browser.run(drawn), f"{plot} is drawn"
    browser.until("heat.some(h => h > 0)", "updated items flash")
    assert browser.run("document.querySelectorAll('#tables tr').length") > 2
    ages = "[...document.querySelectorAll('#ages span:nth-child(3n)')].map(e => +e.textContent.replaceAll(',', ''))"
    assert sum(browser.run(ages)) == browser.run("total"), "every row has an age"


def _looks_up(browser: Tab) -> None:
    browser.run("document.getElementById('id').value = 'a/b c'; document.getElementById('lookup').requestSubmit()")
    browser.until("document.querySelectorAll('#found .vector i').length == 6", "the vector")
    assert "item a/b c" in browser.run("document.getElementById('found').textContent")
    browser.run("show('item', '<b>nobody</b>')")
    browser.until("document.getElementById('found').textContent.includes('unknown')", "an unknown id is told")
    assert browser.run("document.querySelectorAll('#found b').length") == 0, "an id is no markup"


def _recommends(browser: Tab) -> None:
    browser.run("document.getElementById('user').value = 'u1'; document.getElementById('recommend').requestSubmit()")
    browser.until("document.querySelectorAll('#answer tr').length > 1", "items")
    assert "own history" in browser.run("document.getElementById('answer').textContent")


def _is_used_by_keyboard(browser: Tab) -> None:
    browser.run("document.getElementById('items').focus()")
    browser.press("ArrowRight", 39)
    name = browser.until("at >= 0 && ids[at]", "a point is chosen")
    browser.press("Enter", 13, "\r")
    browser.until(f"document.getElementById('found').textContent.startsWith('item ' + {json.dumps(name)})", "looked up")
    browser.run("document.getElementById('user').focus()")
    browser.type("2")
    browser.press("Enter", 13, "\r")
    browser.until("document.getElementById('answer').textContent", "a form is sent by Enter")


@pytest.mark.servers
def test_with_keys_the_page_asks_for_one_and_has_no_data(tmp_path: Path, redis: RedisServer) -> None:  # noqa: F811
    fill(redis).store.close()
    with serving(tmp_path, redis.url, api_keys=["sesame"]) as service:
        until(lambda: not service.reasons(), "ready", 90)  # may be the first to compile kernels
        with tab(tmp_path, f"{service.url}/dashboard") as browser:
            browser.until("!document.getElementById('key-box').hidden", "a key is asked for")
            browser.until("document.activeElement.id == 'key'", "the box has the focus")
            browser.type("sesame")
            browser.press("Enter", 13, "\r")
            browser.until("document.body.dataset.looks > 0", "looks arrive")
            assert "No trainer named" in browser.run("document.querySelector('#loss .empty').textContent")


@pytest.mark.servers
def test_the_stream_ends_with_its_client_and_has_a_limit(tmp_path: Path, redis: RedisServer) -> None:  # noqa: F811
    fill(redis).store.close()
    with serving(tmp_path, redis.url) as service:
        until(lambda: not service.reasons(), "ready", 90)  # may be the first to compile kernels
        viewers = [_viewer(service.port) for _ in range(16)]
        with closing(http.client.HTTPConnection("127.0.0.1", service.port, timeout=10)) as refused:
            refused.request("GET", "/dashboard/events")
            assert refused.getresponse().status == 503
        for connection, stream in viewers:
            assert stream.readline() == b"event: begin\n"
            connection.close()

        def room() -> bool:
            connection, stream = _viewer(service.port)
            connection.close()
            return bool(stream.status == 200)

        until(room, "places are given back")
        assert "Traceback" not in service.log.read_text()


def _viewer(port: int) -> tuple[http.client.HTTPConnection, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", "/dashboard/events")
    return connection, connection.getresponse()


def test_the_page_needs_nothing_from_elsewhere(world: World) -> None:
    answer = world.get("/dashboard")
    assert answer.content == page()
    assert "connect-src 'self'" in answer.headers["content-security-policy"]
    text = answer.text
    assert "/* uPlot" not in text, "it is in the page"
    assert "uPlot=function" in text
    assert "innerHTML" not in text.partition("uPlot=function")[0] + text.rpartition('"use strict";\n//')[2]
    for marked in ('src="http', "src='http", "url(http", '@import "', "import("):
        assert marked not in text


def test_the_page_alone_needs_no_key(make_world: MakeWorld) -> None:
    world = make_world(api_keys=("sesame",))
    assert world.get("/dashboard").status_code == 200
    check_problem(world.get("/dashboard/events"), 401)


def test_a_look_counts_every_row_and_tells_what_is_away(world: World) -> None:
    looker = Looker(world.service)
    first = looker.look()
    assert first.items == sum(first.ages) == 9
    assert {table.name: table.rows for table in first.tables or []} == {"item": 9, "history": 5}
    assert (first.training.named, first.training.seen, first.training.loss) == (0, 0, None)
    assert first.map is not None
    assert first.map.updated == []
    world.writer.apply([("u1", "i1", 1.0)])
    world.get("/v1/embeddings/item/i1")
    world.refresh()
    second = looker.look()
    assert second.step == first.step + 1
    assert second.events_per_s > 0
    assert second.requests_per_s > 0
    assert second.request_p99_ms is not None
    assert second.map is not None
    assert [looker.sampled.ids[i] for i in second.map.updated] == ["i1"] if looker.sampled else False
    world.service.freshness.failed("gone")
    assert looker.look().tables is None


def test_without_a_model_a_look_says_so(make_world: MakeWorld) -> None:
    seen = Looker(make_world(loaded=False).service).look()
    assert seen.reasons == ["loading"]
    assert (seen.items, seen.map, seen.tables, seen.model) == (0, None, None, None)


def test_the_map_keeps_what_it_can_of_distances(world: World) -> None:
    live = world.service.live
    assert live is not None
    sampled = SampledItems(live)
    points = sampled.points()
    keys = live.mirror.spread(100)
    vectors = live.mirror.items(keys).vectors
    variance = np.sort(np.linalg.svd(vectors - vectors.mean(axis=0), compute_uv=False) ** 2)[::-1]
    placed = np.array([points.x, points.y])
    assert sorted((placed**2).sum(axis=1), reverse=True) == pytest.approx(variance[:2], rel=0.01)


def test_trainers_are_asked_and_may_be_away() -> None:
    one, two = Trainer(), Trainer()
    one.learned(2.0, 0.3)
    two.learned(4.0, 0.5)
    seen = look([one.url, two.url, "http://127.0.0.1:1/metrics"])
    assert (seen.named, seen.seen, seen.loss) == (3, 2, 3.0)
    assert (seen.hit_rate, seen.hit_rate_popularity) == pytest.approx((0.4, 0.2))
    assert look([Trainer().url]).loss is None, "nothing was learned yet"


def test_a_look_that_fails_is_told_ends_the_streams_and_the_next_viewer_is_served(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A page that stood still without a word would look like a service that does."""
    routes, real = DashboardRoutes(world.service), Looker.look

    async def watch() -> None:
        monkeypatch.setattr(Looker, "look", lambda self: 1 // 0)
        first = routes._stream()
        assert (await anext(first)).startswith(b"event: begin")
        with pytest.raises(StopAsyncIteration):
            await asyncio.wait_for(anext(first), 10)
        monkeypatch.setattr(Looker, "look", real)
        second = routes._stream()
        assert (await anext(second)).startswith(b"event: begin")
        assert (await asyncio.wait_for(anext(second), 10)).startswith(b"event: items")
        assert (await asyncio.wait_for(anext(second), 10)).startswith(b"event: look")
        await second.aclose()

    asyncio.run(watch())
    assert "ZeroDivisionError" in caplog.text
