"""Two ids that share a 64-bit key, forged: the second one's events go to the dead letters, and nothing else changes."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from embedding_store.contract import Source
from embedding_store.memory import MemoryStore
from embedding_store.model import ModelSettings
from ingest.columns import Events, MicroBatch, Partition
from ingest.listed import ListedSource
from ingest.settings import IngestSettings
from native.identity import key_and_check
from native.ragged import Ragged
from tests.flushes import flush_of
from tests.trainer import numpy_step
from tests.trainer.small import TOPIC
from trainer import learner
from trainer.identities import Identities
from trainer.metrics import Metrics
from trainer.settings import TrainerSettings
from trainer.worker import Worker

MODEL = ModelSettings(dim=4, history_length=3, seen_length=8, shards=2, clocks=(0.8,), learned_gates=False)
P = Partition(TOPIC, 0)
KEY, CHECK = key_and_check(b"owner")


def forged(events: Events) -> Events:
    """As if the key of every id that begins with `forged` were that of `owner`; check bits are its own."""
    changes = {}
    for side in ("user", "item"):
        ids = getattr(events, f"{side}_id")
        keys = getattr(events, f"{side}_key").copy()
        keys[[i for i in range(len(events)) if ids.at(i).startswith(b"forged")]] = KEY
        changes[f"{side}_key"] = keys
    return dataclasses.replace(events, **changes)


class Forger(ListedSource):
    def poll(self, stop_at) -> MicroBatch | None:
        batch = super().poll(stop_at)
        return None if batch is None else dataclasses.replace(batch, events=forged(batch.events))


def line(user: str | int, item: str | int) -> bytes:
    return json.dumps({"user_id": user, "item_id": item, "timestamp": 1_700_000_000_000}).encode()


def run(store, lines, batch, **knobs):
    source = Forger({P: lines}, IngestSettings(batch_events=batch), 1_700_000_000_000)
    metrics = Metrics()
    settings = TrainerSettings(replay=0, group=16, evaluate_share=0.0, **knobs)
    Worker(store, source, MODEL, settings, metrics).run(lambda: source.exhausted)
    return source, metrics.registry.get_sample_value


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(learner, "_compile_step", numpy_step.compile_step)


@pytest.mark.parametrize("batch", [1, 2, 7, 100])
@pytest.mark.parametrize("apply_every", [1, 50])
def test_events_of_a_taken_key_are_dead_letters_before_anything_is_learned(batch, apply_every):
    lines = [
        line(1, "a"), line("owner", "a"), line("forged-1", "b"), line("owner", "b"), line(2, "owner"),
        line(2, "forged-2"), line("forged-1", "forged-2"), line("b", "b"),
    ]  # fmt: skip
    store = MemoryStore()
    source, sample = run(store, lines, batch, apply_every=apply_every)
    assert [(p, offset) for p, offset, _ in source.dead] == [(P, 2), (P, 5), (P, 6)]
    assert "another id has the same 64-bit key" in source.dead[0][2]
    assert sample("towline_trainer_refused_total") == 3
    # the clock is that of the stream, refused events included: it must be the same whoever replays it
    for table in ("item", "history"):
        assert {s.clock for s in store.status(table)} == {8}
        assert {s.offsets[Source(*P)] for s in store.status(table)} == {8}
        assert sum(s.refused for s in store.status(table)) == 0
    rows = store.lookup("item", np.array([KEY, key_and_check(b"b")[0]], np.uint64))
    assert (rows.count.tolist(), rows.ids.tolist()) == ([1, 2], [b"owner", b"b"])
    users = store.histories("history", np.array([KEY], np.uint64))
    assert (users.count.tolist(), len(users.entries)) == ([2], 2)


def test_the_owner_in_the_store_wins_over_who_is_first_in_a_batch():
    store = MemoryStore()
    run(store, [line("owner", "owner")], 1)
    store2_lines = [line("forged-1", "x"), line("owner", "x"), line("x", "forged-1"), line("x", "owner")]
    source = Forger({P: [line("owner", "owner"), *store2_lines]}, IngestSettings(batch_events=100), 1_700_000_000_000)
    metrics = Metrics()
    Worker(store, source, MODEL, TrainerSettings(replay=0, group=16, evaluate_share=0.0), metrics).run(
        lambda: source.exhausted
    )
    assert [offset for _, offset, _ in source.dead] == [1, 3]
    assert store.lookup("item", np.array([KEY], np.uint64)).count.tolist() == [2]


def events_of_ids(*ids: bytes) -> Events:
    n = len(ids)
    parts = [key_and_check(i) for i in ids]
    zeros = np.zeros(n, np.int64)
    sides = {}
    for side in ("user", "item"):
        sides[f"{side}_key"] = np.array([k for k, _ in parts], np.uint64)
        sides[f"{side}_check"] = np.array([c for _, c in parts], np.uint32)
        sides[f"{side}_id"] = Ragged.of(ids)
    return forged(Events(partition=zeros.astype(np.uint32), place=zeros, time_ms=zeros, produced_ms=zeros,
                         label=np.ones(n, np.float32), weight=np.ones(n, np.float32), **sides))  # fmt: skip


class Counting(MemoryStore):
    asked = 0

    def taken(self, table, keys, checks, ids):
        self.asked += len(keys)
        return super().taken(table, keys, checks, ids)


def test_known_ids_and_integers_are_not_asked_about():
    store = Counting()
    for spec in MODEL.tables().values():
        store.create(spec)
    identities = Identities(store)
    batch = events_of_ids(b"1", b"2", b"owner", b"x", b"owner")
    assert identities.refused(batch).tolist() == []
    assert store.asked == 2 * 3
    assert identities.refused(batch).tolist() == []
    assert store.asked == 2 * 3
    # what this worker let through and has not applied yet holds its key
    assert identities.refused(events_of_ids(b"forged", b"3", b"forged")).tolist() == [0, 2]
    assert identities.refused(batch).tolist() == []


def test_a_key_that_was_given_up_can_be_taken():
    store = MemoryStore()
    for spec in MODEL.tables().values():
        store.create(spec)
        for shard in range(spec.shards):
            store.seek(spec.name, shard, Source(*P), None, 0, "first start")
    identities = Identities(store)
    assert identities.refused(events_of_ids(b"owner")).tolist() == []
    flush = {"counts": [1], "identities": [(CHECK, b"owner")], "source": Source(*P)}
    for table in ("item", "history"):
        store.apply(table, flush_of([KEY], 0, 1, **flush))
    identities.clear()
    assert identities.refused(events_of_ids(b"forged")).tolist() == [0]
    for table in ("item", "history"):
        store.apply(table, flush_of([], 1, 2, forget=[KEY], source=Source(*P)))
    assert identities.refused(events_of_ids(b"forged")).tolist() == []
    assert identities.refused(events_of_ids(b"owner")).tolist() == [0]
