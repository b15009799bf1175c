"""The thread that follows the store: it waits, retries, swaps models, and never dies in silence."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import cast

import pytest

from embedding_store.contract import EmbeddingStore
from embedding_store.errors import StoreMisconfigured, StoreUnavailable
from serving.app import create_app
from serving.refresher import Refresher
from serving.service import Service
from serving.settings import ServingSettings
from tests.serving.conftest import MODEL, World, Writer
from tests.serving.test_stale import Flaky


def until(condition: Callable[[], object], what: str, deadline_s: float = 10.0) -> None:
    """Wait for a condition."""
    end = time.monotonic() + deadline_s
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < end, f"not within {deadline_s} s: {what}"
        pause.wait(0.005)


class Scene:
    """A refresher over a store that can go away."""

    def __init__(self) -> None:
        self.flaky = Flaky()
        self.store = cast(EmbeddingStore, self.flaky)
        self.service = Service(ServingSettings(max_lag_s=0.5))
        self.connects = 0
        self.refresher = Refresher(self.service, self.connect)
        self.writer = Writer(self.store, MODEL)

    def connect(self) -> EmbeddingStore:
        self.connects += 1
        if self.flaky.down:
            raise StoreUnavailable("connection refused")
        return self.store

    @property
    def size(self) -> int:
        return self.service.live.mirror.size if self.service.live else -1


@pytest.fixture
def scene() -> Iterator[Scene]:
    scene = Scene()
    yield scene
    scene.refresher.stop()
    assert not scene.refresher.is_alive()
    scene.service.close()


def test_waits_for_the_store_then_for_a_model_then_serves(scene: Scene) -> None:
    scene.flaky.down = True
    scene.refresher.start()
    until(lambda: scene.connects >= 2, "retries")
    assert scene.service.unready() == ["loading", "store_down"]
    scene.flaky.down = False
    until(lambda: scene.service.unready() == ["loading"], "waits for a model: the store is there")
    assert scene.service.live is None
    scene.writer.declare()
    scene.writer.apply([("u", "i", 1.0)])
    until(lambda: not scene.service.unready(), "ready")
    assert scene.size == 1


def test_changes_appear_by_themselves_and_are_timed(scene: Scene) -> None:
    scene.writer.declare()
    scene.refresher.start()
    until(lambda: scene.size == 0, "loaded")
    scene.writer.apply([("u", "i", 1.0)])
    until(lambda: scene.size == 1, "the row")
    until(lambda: scene.service.freshness.delays().samples, "a delay")
    assert 0 <= (scene.service.freshness.delays().p99_ms or -1) < 10_000


def test_an_idle_feed_keeps_confirming(scene: Scene) -> None:
    scene.writer.declare()
    scene.refresher.start()
    until(lambda: scene.size == 0, "loaded")
    worst = 0.0
    end = time.monotonic() + 1.0
    while time.monotonic() < end:
        worst = max(worst, scene.service.freshness.lag_s)
        threading.Event().wait(0.02)
    assert worst < 0.5 + 0.3, "lag rose while nothing happened"
    assert not scene.service.stale


def test_an_outage_is_marked_and_recovered_from(scene: Scene) -> None:
    scene.writer.declare()
    scene.refresher.start()
    until(lambda: not scene.service.unready(), "ready")
    scene.flaky.down = True
    until(lambda: scene.service.store_down, "noticed")
    assert scene.service.stale
    until(lambda: scene.service.unready() == ["store_down", "lag"], "readiness fails past the lag")
    assert scene.service.live is not None, "the mirror is kept"
    scene.flaky.down = False
    scene.writer.apply([("u", "i", 1.0)])
    until(lambda: not scene.service.unready() and scene.size == 1, "recovered")
    assert not scene.service.stale


def test_retries_back_off(scene: Scene) -> None:
    scene.flaky.down = True
    scene.refresher.start()
    threading.Event().wait(1.0)
    assert 3 <= scene.connects <= 12


def test_a_newly_published_model_replaces_the_live_one_as_a_whole(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serving.refresher._MODEL_CHECK_S", 0.05)
    scene.writer.declare()
    scene.refresher.start()
    until(lambda: scene.service.live, "loaded")
    before = scene.service.live
    assert before is not None
    scene.store.publish_model(MODEL.model_copy(update={"clocks": (0.5,)}).document())
    until(lambda: scene.service.live is not before, "the new model")
    after = scene.service.live
    assert after is not None
    assert (before.model.clocks, after.model.clocks) == ((0.8,), (0.5,))
    assert after.version != before.version
    assert after.mirror is not before.mirror


@pytest.mark.parametrize("document", [b"not json", b"{}x", b'{"dim":64,"from_the_future":1}', b"[]"])
def test_an_unreadable_model_is_waited_out(scene: Scene, document: bytes) -> None:
    scene.writer.declare()
    scene.store.publish_model(document)
    scene.refresher.start()
    until(lambda: "another version" in str(scene.service.freshness.failure), "says why")
    scene.store.publish_model(MODEL.document())
    until(lambda: not scene.service.unready(), "ready")
    assert scene.service.crash is None


@pytest.mark.parametrize("document", [b"not json", b'{"dim":64,"from_the_future":1}'])
def test_the_model_before_an_unreadable_one_is_served_and_followed(
    scene: Scene, document: bytes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("serving.refresher._MODEL_CHECK_S", 0.05)
    service = scene.service
    world = World(service, scene.store, scene.writer, create_app(service))
    scene.writer.declare()
    scene.refresher.start()
    until(lambda: service.live, "loaded")
    before = service.live
    assert before is not None
    scene.store.publish_model(document)
    until(lambda: service.freshness.model_refused, "refused")
    scene.writer.apply([("u1", "new", 1.0)])
    until(lambda: before.mirror.size == 1, "what comes is followed")
    assert service.live is before
    assert service.freshness.failure is None
    assert world.get("/readyz").json() == {"status": "ready", "degraded": ["model_refused"]}
    assert [r.getMessage() for r in caplog.records if r.levelname == "ERROR"] == [
        "the published model can't be read: it is of another version, upgrade this service or the trainer; the model "
        "before it is served on"
    ]
    scene.store.publish_model(MODEL.document())
    until(lambda: not service.freshness.model_refused, "nothing is refused any more")
    assert service.live is before
    assert world.get("/readyz").json()["degraded"] == []


def test_a_bug_fails_liveness_instead_of_freezing_the_mirror(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    scene.writer.declare()
    scene.refresher.start()
    until(lambda: scene.service.live, "loaded")
    live = scene.service.live
    assert live is not None

    def broken(timeout_s: float) -> bool:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(live.mirror, "wait", broken)
    until(lambda: scene.service.crash, "the crash is told")
    assert "ZeroDivisionError" in str(scene.service.crash)
    assert any(record.levelname == "CRITICAL" for record in caplog.records)


def test_a_store_that_breaks_guarantees_ends_the_process() -> None:
    def connect() -> EmbeddingStore:
        raise StoreMisconfigured("maxmemory-policy is allkeys-lru: set it to noeviction")

    service = Service(ServingSettings())
    refresher = Refresher(service, connect)
    refresher.start()
    until(lambda: service.fatal, "fatal")
    assert "noeviction" in str(service.fatal)
    refresher.stop()
    service.close()
