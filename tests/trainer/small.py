"""Short ways to make events, records and small models, for every test of the trainer."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from embedding_store.contract import ENTRY, EmbeddingStore, Source
from embedding_store.model import ModelSettings
from ingest.columns import Events, MicroBatch, Partition, Tombstones
from native.identity import key_and_check
from native.ragged import Ragged
from tests.flushes import flush_of

TOPIC = "clicks"
SOURCE = Source(TOPIC, 0)
MODEL = ModelSettings(dim=4, history_length=3, seen_length=8, shards=2, clocks=(0.8,), learned_gates=False)


@dataclass(frozen=True, order=True)
class Click:
    """An event; the order is that of sequence entries."""

    time_ms: int
    partition: int
    place: int
    user: int
    item: int
    label: float = 1.0
    weight: float = 1.0

    @property
    def when(self) -> tuple[int, int, int]:
        return self.time_ms, self.partition, self.place


def events_of(clicks: Sequence[Click]) -> Events:
    def column(name: str, dtype: type) -> np.ndarray:
        return np.array([getattr(c, name) for c in clicks], dtype)

    sides = {}
    for side in ("user", "item"):
        ids = [str(getattr(c, side)).encode() for c in clicks]
        parts = [key_and_check(i) for i in ids]
        sides[f"{side}_key"] = np.array([k for k, _ in parts], np.uint64)
        sides[f"{side}_check"] = np.array([c for _, c in parts], np.uint32)
        sides[f"{side}_id"] = Ragged.of(ids)
    return Events(
        partition=column("partition", np.uint32),
        place=column("place", np.int64),
        time_ms=column("time_ms", np.int64),
        produced_ms=column("time_ms", np.int64) + 1000,
        label=column("label", np.float32),
        weight=column("weight", np.float32),
        **sides,
    )


def entries_of(clicks: Iterable[Click]) -> np.ndarray:
    return np.array([(c.time_ms, c.place, c.item, c.partition, c.weight) for c in clicks], ENTRY)


def batch_of(
    clicks: Sequence[Click],
    start: int,
    stop: int,
    *,
    forget_users: Sequence[int] = (),
    forget_items: Sequence[int] = (),
    partition: int = 0,
) -> MicroBatch:
    forget = [
        Tombstones.of([(key, key_and_check(str(key).encode())[1], 0, (stop - 1) << 16, partition) for key in keys])
        for keys in (forget_users, forget_items)
    ]
    return MicroBatch(events_of(clicks), {Partition(TOPIC, partition): (start, stop)}, *forget, 0)


def declare(store: EmbeddingStore, model: ModelSettings, *sources: Source) -> None:
    """Create the model's tables and set the offsets of its sources to 0."""
    for spec in model.tables().values():
        store.create(spec)
        for source in sources or (SOURCE,):
            for shard in range(spec.shards):
                store.seek(spec.name, shard, source, None, 0, "first start")


def store_clicks(store: EmbeddingStore, clicks: Sequence[Click], *, items: bool = True, gradient: float = 1.0) -> None:
    """Apply positives to history and, if told so, their items to the item table."""
    start = store.status("history")[0].offsets[SOURCE]
    stop = start + max(1, len(clicks))
    users = sorted({c.user for c in clicks})
    appends = [(users.index(c.user), c.time_ms, c.place, c.item, c.partition, c.weight) for c in clicks]
    counts = [sum(c.user == u for c in clicks) for u in users]
    store.apply("history", flush_of(users, start, stop, appends=appends, counts=counts, source=SOURCE))
    keys = sorted({c.item for c in clicks}) if items else []
    dim = store.spec("item").dim
    gradients = gradient * np.random.default_rng(stop).normal(size=(len(keys), dim))
    counts = [sum(c.item == k for c in clicks) for k in keys]
    store.apply("item", flush_of(keys, start, stop, gradients=gradients, counts=counts, source=SOURCE))


def record(click: Click) -> bytes:
    """The click as a Kafka message; its place is the message's."""
    return json.dumps(
        {
            "user_id": click.user,
            "item_id": click.item,
            "timestamp": click.time_ms,
            "label": click.label,
            "weight": click.weight,
        }
    ).encode()
