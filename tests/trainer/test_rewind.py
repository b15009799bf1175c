"""Workers over a store that is rewound under them: from the snapshot on, all of the stream but what is excluded."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import random

import numpy as np
import pytest

from embedding_store.contract import Range, Source
from embedding_store.errors import StoreBeingRestored
from embedding_store.memory import MemoryStore
from embedding_store.settings import RedisSettings
from embedding_store.snapshots.create import create
from embedding_store.snapshots.restore import opened_registered, restore
from ingest.columns import MAX_LINES, MicroBatch, Partition, Tombstones
from ingest.listed import ListedSource
from ingest.settings import IngestSettings
from tests.flushes import contents
from tests.servers import server_names
from tests.trainer import numpy_step
from tests.trainer.features import MODEL as FEATURED
from tests.trainer.features import source_of
from tests.trainer.small import MODEL, TOPIC, Click, events_of, record
from trainer import learner, worker
from trainer.backoff import Backoff
from trainer.exclusion import Exclusion
from trainer.metrics import Metrics
from trainer.settings import TrainerSettings
from trainer.worker import Worker

A, B = Partition(TOPIC, 0), Partition(TOPIC, 1)
RECORDS = 40
POISON = [Range(Source(*A), 14, 20), Range(Source(*B), 25, 26)]
SETTINGS = {"group": 16, "evaluate_share": 0.0, "reconcile_every_s": 1e-9, "replay": 0}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(learner, "_compile_step", numpy_step.compile_step)
    monkeypatch.setattr(worker, "Backoff", functools.partial(Backoff, 0.0, 0.0))


def clicks_of(partition: Partition) -> list[Click]:
    rng = random.Random(partition.number)
    return [
        Click(1_700_000_000_000 + 100 * i, partition.number, i << 16, 10 * partition.number + rng.randrange(5),
              100 + rng.randrange(9), float(rng.random() < 0.8))
        for i in range(RECORDS)
    ]  # fmt: skip


CLICKS = {p: clicks_of(p) for p in (A, B)}


def messages_of(poison=()):
    """The stream; and the same with records without an event in the place of those that are left out."""

    def one(partition: Partition, offset: int, click: Click) -> bytes:
        left_out = any(r.source == Source(*partition) and r.start <= offset < r.stop for r in poison)
        return b'{"user_id": 1}' if left_out else record(click)

    return {p: [one(p, offset, click) for offset, click in enumerate(clicks)] for p, clicks in CLICKS.items()}


def work(store, messages, each=lambda source: None, **knobs) -> Metrics:
    source = ListedSource(messages, IngestSettings(batch_events=5), 1_700_000_000_000)
    metrics, turns = Metrics(), itertools.count()

    def stopping() -> bool:
        assert next(turns) < 400, "no progress"
        return bool(each(source)) or source.exhausted

    Worker(store, source, MODEL, TrainerSettings(**{**SETTINGS, **knobs}), metrics).run(stopping)
    return metrics


def counted(store):
    """Counts, sequences, clocks and offsets: what is exact, whatever passes were made."""
    exact = {}
    for table in MODEL.tables():
        changes = store.changes(table, None)
        exact[table] = dict(zip(changes.keys.tolist(), changes.rows.count.tolist(), strict=True))
        exact[f"{table} shards"] = [(s.clock, dict(s.offsets), s.rows) for s in store.status(table)]
    users = np.array(sorted(exact["history"]), np.uint64)
    exact["entries"] = store.histories("history", users).entries.tolist()
    return exact


def without_times(store):
    """Every row's bytes but the wall clock of its last update, 8 bytes after clock and count."""
    return {t: {k: row[:16] + row[24:] for k, row in contents(store, t).items()} for t in ("item", "history")}


@pytest.mark.parametrize("knobs", [{}, {"apply_every": 3}], ids=["each", "every-3"])
def test_excluded_records_are_as_good_as_unusable_ones(knobs):
    left, bad = MemoryStore(), MemoryStore()
    left.exclude(POISON)
    metrics = work(left, messages_of(), **knobs)
    work(bad, messages_of(POISON), **knobs)
    assert counted(left) == counted(bad)
    assert without_times(left) == without_times(bad)
    sample = metrics.registry.get_sample_value
    assert sample("towline_trainer_excluded_total") == 7
    assert sample("towline_trainer_events_total") == 2 * RECORDS - 7


def test_a_batch_loses_the_events_and_tombstones_of_excluded_records_only():
    places = [(0, 4, 0), (0, 5, 0), (0, 5, 1), (0, 6, 0), (1, 5, 0)]
    clicks = [Click(1, p, offset * MAX_LINES + line, 1, i) for i, (p, offset, line) in enumerate(places)]
    tombs = [Tombstones.of([(7, 0, 0, offset * MAX_LINES, 0)]) for offset in (5, 6)]
    lines = [b"{}", *3 * [b'{"item_id": 1, "features": {"genre": "a"}}']]  # at offsets 1 to 3
    told = source_of({A: lines}, FEATURED).poll({}).profiles
    told = dataclasses.replace(told, place=told.place + 3 * MAX_LINES)
    batch = MicroBatch(events_of(clicks), {A: (4, 7), B: (0, 9)}, *tombs, 0, told)
    left, n = Exclusion([Range(Source(*A), 5, 6), Range(Source(TOPIC, 2), 0, 99)]).without(batch)
    assert (left.events.item_key.tolist(), n) == ([0, 3, 4], 4)
    assert (left.profiles.place // MAX_LINES).tolist() == [4, 6]
    assert (len(left.forget_users), len(left.forget_items)) == (0, 1)
    assert left.ranges == batch.ranges
    for other in (Range(Source("another", 0), 0, 99), Range(Source(*A), 7, 9), Range(Source(*A), 0, 4)):
        assert Exclusion([other]).without(batch) == (batch, 0)


@pytest.mark.servers
@pytest.mark.parametrize("kind", [server_names()[0], "module"])
@pytest.mark.parametrize("poison", [(), POISON], ids=["replay", "exclude"])
def test_a_trainer_goes_on_by_itself_when_its_store_is_rewound(kind, poison, server_of, tmp_path):
    """Snapshot and restore happen while the worker is at work, between its turns."""
    server = server_of(kind)
    server.command("FLUSHALL")
    store = opened_registered(RedisSettings(url=server.url))
    operator = opened_registered(RedisSettings(url=server.url))
    turns = itertools.count()
    manifests = []
    refusals = []

    def each(source) -> None:
        turn = next(turns)
        if turn == 3:
            manifests.append(create(operator, tmp_path, "early"))
        if turn == 12:
            assert min(manifests[0].lowest.values()) > 0
            assert max(manifests[0].highest.values()) <= 14

            def interrupted(step) -> None:
                if step.what.startswith("restoring") and step.done == 1:
                    raise KeyboardInterrupt

            with pytest.raises(KeyboardInterrupt):
                restore(operator, tmp_path, manifests[0], exclude=poison, told=interrupted)
        if turn == 14:
            with pytest.raises(StoreBeingRestored):
                store.generation()
            refusals.append(turn)
            restore(operator, tmp_path, manifests[0])

    metrics = work(store, messages_of(), each, replay=2)
    sample = metrics.registry.get_sample_value
    assert refusals == [14]
    assert sample("towline_trainer_away_total", {"what": "store"}) >= 1
    expected = MemoryStore()
    expected.exclude(poison)
    work(expected, messages_of())
    assert counted(store) == counted(expected)
    assert sample("towline_trainer_events_total") > 2 * RECORDS - 7 * bool(poison)
    for one in (store, operator):
        one.close()
