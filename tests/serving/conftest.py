"""A small world behind the service: a memory store filled through its real `apply`, and a client over ASGI."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np
import pytest

from embedding_store.contract import ENTRY, EmbeddingStore, Flush, Range, Source
from embedding_store.memory import MemoryStore
from embedding_store.mirror import ItemMirror
from embedding_store.model import ModelSettings
from native.identity import key_and_check
from native.ragged import Ragged
from serving.app import create_app
from serving.service import Live, Service
from serving.settings import ServingSettings

TOPIC = "topic-id"
EVENT_TIME_MS = 1_700_000_000_000  # 2023-11-14T22:13:20Z
Event = tuple[str, str, float]  # user, item, label


@dataclass
class Writer:
    """Applies events to a store as a trainer does, with random gradients."""

    store: EmbeddingStore
    model: ModelSettings
    offset: int = 0
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(1))

    def declare(self) -> None:
        for spec in self.model.tables().values():
            self.store.create(spec)
            for shard in range(spec.shards):
                self.store.seek(spec.name, shard, Source(TOPIC, 0), None, 0, "first start")
        self.store.publish_model(self.model.document())

    def apply(self, events: list[Event]) -> None:
        start, self.offset = self.offset, self.offset + len(events)
        ranges = (Range(Source(TOPIC, 0), start, self.offset),)
        common = {
            "generation": self.store.generation(),
            "ranges": ranges,
            "events": len(events),
            "event_time_ms": EVENT_TIME_MS + self.offset,
            "produced_ms": time.time_ns() // 1_000_000,
            "now_ms": time.time_ns() // 1_000_000,
        }
        items = _columns([item for _, item, _ in events], [label for *_, label in events])
        gradients = self.rng.normal(0, 1, (len(items["keys"]), self.model.dim)).astype(np.float32)
        self._done("item", Flush(**common, **items, gradients=gradients))
        users = _columns([user for user, *_ in events], [label for *_, label in events])
        row_of = {key: i for i, key in enumerate(users["keys"].tolist())}
        positives = [(n, e) for n, e in enumerate(events) if e[2] > 0]
        appends = np.zeros(len(positives), ENTRY)
        for slot, (n, (_, item, label)) in enumerate(positives):
            at = start + n
            appends[slot] = (EVENT_TIME_MS + at, at << 16, key_and_check(item.encode())[0], 0, label)
        rows = np.array([row_of[key_and_check(user.encode())[0]] for _, (user, *_) in positives], np.int64)
        self._done("history", Flush(**common, **users, appends=appends, append_rows=rows))

    def _done(self, table: str, flush: Flush) -> None:
        assert {reply.outcome for reply in self.store.apply(table, flush)} == {"applied"}


def _columns(ids: list[str], labels: list[float]) -> dict[str, Any]:
    names = list(dict.fromkeys(ids))
    parts = [key_and_check(name.encode()) for name in names]
    return {
        "keys": np.array([key for key, _ in parts], np.uint64),
        "checks": np.array([check for _, check in parts], np.uint32),
        "counts": np.array([ids.count(name) for name in names], np.int64),
        "positives": np.array(
            [sum(label for i, label in zip(ids, labels, strict=True) if i == name and label > 0) for name in names],
            np.float32,
        ),
        "ids": Ragged.of([name.encode() for name in names]),
    }


MODEL = ModelSettings(
    dim=6, history_length=3, seen_length=8, shards=2, popularity_weight=0.5, clocks=(0.8,), learned_gates=False
)
EVENTS: list[Event] = [
    *[("u1", f"i{n}", 1.0) for n in range(5)],
    *[("u2", f"i{n}", 1.0) for n in (0, 0, 0, 1, 1, 7)],
    ("42", "1001", 1.0),
    ("u/slash é", "a/b c", 1.0),
    ("negative", "i9", 0.0),
]


@dataclass
class World:
    """A service over a store, a writer beside it, and requests to it."""

    service: Service
    store: EmbeddingStore
    writer: Writer
    app: Any = None

    def refresh(self) -> None:
        live = self.service.live
        assert live is not None
        started = time.monotonic()
        live.mirror.refresh()
        self.service.freshness.confirm(started)

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        return asyncio.run(self._request(method, path, options))

    async def _request(self, method: str, path: str, options: dict[str, Any]) -> httpx.Response:
        transport = httpx.ASGITransport(app=self.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.request(method, path, **options)

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.request("GET", path, **options)

    def post(self, path: str, json: Any = None, **options: Any) -> httpx.Response:
        return (
            self.request("POST", path, json=json, **options)
            if json is not None
            else self.request("POST", path, **options)
        )


def load(service: Service, store: EmbeddingStore, model: ModelSettings) -> None:
    """What the refreshing thread does first."""
    mirror = ItemMirror(store, model)
    started = time.monotonic()
    mirror.refresh()
    service.live = Live.of(store, model.document(), model, mirror)
    service.freshness.confirm(started)


def served(store: EmbeddingStore, model: ModelSettings) -> Iterator[World]:
    """A service over what is stored, closed afterwards."""
    service = Service(ServingSettings())
    load(service, store, model)
    yield World(service, store, Writer(store, model), create_app(service))
    service.close()


MakeWorld = Callable[..., World]


@pytest.fixture
def make_world() -> Iterator[MakeWorld]:
    """Builds worlds: `make_world(max_k=5)` sets settings, `model=` the model, `events=` what was applied."""
    made: list[World] = []

    def make(
        *,
        model: ModelSettings = MODEL,
        events: list[Event] | None = None,
        store: EmbeddingStore | None = None,
        loaded: bool = True,
        **settings: Any,
    ) -> World:
        store = store or MemoryStore()
        writer = Writer(store, model)
        writer.declare()
        for event in EVENTS if events is None else events:
            writer.apply([event])
        service = Service(ServingSettings(**settings))
        if loaded:
            load(service, store, model)
        made.append(World(service, store, writer, create_app(service)))
        return made[-1]

    yield make
    for world in made:
        world.service.close()


@pytest.fixture
def world(make_world: MakeWorld) -> World:
    """The default world."""
    return make_world()
