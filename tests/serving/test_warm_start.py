"""A restart answers from the mirror's file, says how old it is, and catches up. What may not be served is refused."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from embedding_store.contract import Changes, Cursor, Source
from embedding_store.memory import MemoryStore
from embedding_store.mirror import ItemMirror
from embedding_store.model import ModelSettings
from native.identity import key_and_check
from serving.freshness import Freshness
from serving.refresher import Refresher
from serving.service import Service
from serving.settings import ServingSettings
from serving.warm_start import NAME, Kept, Saver, restore
from tests.flushes import flush_of
from tests.servers import RedisServer, running
from tests.serving.conftest import EVENTS, MODEL, TOPIC, Writer
from tests.serving.test_process import fill, serving
from tests.serving.test_refresher import until


class Gated(MemoryStore):
    """A store whose feed is as slow as the test wants."""

    def __init__(self) -> None:
        super().__init__()
        self.open = threading.Event()
        self.asked = threading.Event()

    def changes(self, table: str, cursor: Cursor | None) -> Changes:
        self.asked.set()
        assert self.open.wait(30)
        return super().changes(table, cursor)


def world(model: ModelSettings = MODEL) -> tuple[Gated, Writer]:
    store = Gated()
    store.open.set()
    writer = Writer(store, model)
    writer.declare()
    for event in EVENTS:
        writer.apply([event])
    return store, writer


def kept(store: MemoryStore, model: ModelSettings = MODEL) -> Kept:
    return Kept(store, model.document(), ItemMirror(store, model))


def saved(store: MemoryStore, folder: Path, *, age_s: float = 0.0, model: ModelSettings = MODEL) -> Path:
    """As the service saves it, so long ago."""
    mirror = ItemMirror(store, model)
    mirror.refresh()
    path = folder / NAME
    now_ms = time.time_ns() // 1_000_000
    mirror.save(path, model.document(), store.generation(), now_ms - round(1000 * age_s))
    return path


def forget(store: MemoryStore, at: int, item: str) -> None:
    key = key_and_check(item.encode())[0]
    flush = flush_of([], at, at + 1, forget=[key], source=Source(TOPIC, 0), generation=store.generation())
    assert {reply.outcome for reply in store.apply("item", flush)} == {"applied"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "mirror"


def started(store: MemoryStore, folder: Path, **settings: float) -> tuple[Service, Refresher]:
    service = Service(ServingSettings(mirror_folder=str(folder), max_lag_s=5, **settings))  # type: ignore[arg-type]
    refresher = Refresher(service, lambda: store)
    refresher.start()
    return service, refresher


def test_it_answers_before_it_has_asked_the_feed_and_what_was_forgotten_goes_with_it(folder: Path) -> None:
    store, writer = world()
    saved(store, folder, age_s=60)
    forget(store, writer.offset, "i1")
    store.open.clear()
    store.asked.clear()
    service, refresher = started(store, folder)
    try:
        until(store.asked.is_set, "it catches up")
        live = service.live
        assert live is not None
        gone = np.array([key_and_check(b"i1")[0]], np.uint64)
        assert live.mirror.item(gone) is not None
        assert 60 <= service.freshness.lag_s < 90
        assert (service.stale, service.unready()) == (True, ["lag"]), "it says so"
        store.open.set()
        until(lambda: not service.unready(), "caught up")
        assert live is service.live
        assert live.mirror.item(gone) is None, "what was forgotten since is served no more"
    finally:
        refresher.stop()
        service.close()


def test_a_feed_with_a_hole_is_scanned_behind_what_is_served(folder: Path) -> None:
    store, writer = world()
    saved(store, folder, age_s=60)
    forget(store, writer.offset, "i1")
    store._run_id = "after a restart"
    store.open.clear()
    store.asked.clear()
    service, refresher = started(store, folder)
    try:
        until(lambda: service.live is not None, "it answers")
        store.open.set()
        until(lambda: not service.unready(), "caught up")
        assert service.live is not None
        assert service.live.mirror.item(np.array([key_and_check(b"i1")[0]], np.uint64)) is None
    finally:
        refresher.stop()
        service.close()


def test_what_may_not_be_served_is_refused_and_told(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    store, writer = world()
    path = saved(store, folder)

    def refused(why: str, other: Kept) -> None:
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            assert restore(path, other) is None
        assert why in caplog.text
        assert str(path) in caplog.text
        assert other.mirror.size == 0

    assert restore(path, kept(store)) is not None
    caplog.clear()
    whole = path.read_bytes()
    path.write_bytes(whole[:-100] + b"\0" + whole[-99:])
    refused("damaged", kept(store))
    path.write_bytes(b"")
    refused("can't be read", kept(store))
    path.write_bytes(b"another program's")
    refused("no mirror's file of this version", kept(store))
    path.write_bytes(whole)

    refused("is of another model", kept(store, MODEL.model_copy(update={"popularity_weight": 0.25})))
    younger, other = MemoryStore(), MODEL
    Writer(younger, other).declare()
    refused("is of another store, or of what it has lost", kept(younger))
    store.raise_generation()
    refused("is of store generation 0, the store's is 1", kept(store))
    path.unlink()
    caplog.clear()
    assert restore(path, kept(store)) is None
    assert not caplog.text, "no file is nothing to tell of"
    assert writer.offset


def test_a_refused_file_is_loaded_over_and_replaced(folder: Path) -> None:
    store, _ = world()
    path = saved(store, folder)
    path.write_bytes(path.read_bytes()[:-9])
    service, refresher = started(store, folder, mirror_save_s=1)
    try:
        until(lambda: not service.unready(), "loaded from the store")
        until(lambda: service.freshness.saved_age_s is not None, "saved")
        assert restore(path, kept(store)) is not None
    finally:
        refresher.stop()
        service.close()


def test_a_folder_that_can_not_be_written_is_told_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store, _ = world()
    (tmp_path / "file").write_text("")
    freshness = Freshness()
    held = kept(store)
    held.mirror.refresh()
    freshness.confirm(time.monotonic() + 60)
    settings = ServingSettings(mirror_folder=str(tmp_path / "file" / "below"))
    with caplog.at_level(logging.WARNING):
        Saver(settings, freshness, lambda: held).save()
    assert freshness.save_failures == 1
    assert "was not written" in caplog.text
    assert freshness.saved_age_s is None


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    with running("redis", tmp_path) as server:
        yield server


@pytest.mark.servers
@pytest.mark.parametrize("workers", [1, 2])
def test_a_process_that_was_killed_begins_from_the_file(tmp_path: Path, redis: RedisServer, workers: int) -> None:
    writer = fill(redis)
    options = {"mirror_folder": str(tmp_path / "kept"), "mirror_save_s": 1, "workers": workers}
    path = tmp_path / "kept" / NAME
    with serving(tmp_path, redis.url, **options) as service:
        until(path.exists, "saved", 60)
        service.signal(signal.SIGKILL)
        service.exit_code()
    writer.apply([("u1", "since", 1.0)])
    with serving(tmp_path, redis.url, **options) as service:
        until(lambda: not service.reasons(), "ready", 60)
        assert f"items from {path}" in service.log.read_text()
        until(lambda: service.get("/v1/embeddings/item/since").status_code == 200, "caught up")
        saves = path.stat().st_mtime_ns
        service.signal(signal.SIGTERM)
        assert service.exit_code() == 0
    with serving(tmp_path, redis.url, **options) as service:
        until(lambda: not service.reasons(), "ready", 60)
        assert service.get("/v1/embeddings/item/since").status_code == 200
    assert saves
    writer.store.close()
