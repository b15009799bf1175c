"""Streams with nothing to be told apart: rows stay finite, everything counts once, and the service has an answer."""

from __future__ import annotations

import numpy as np
import pytest

from embedding_store.memory import MemoryStore
from embedding_store.mirror import ItemMirror
from embedding_store.model import ModelSettings
from embedding_store.ranking import Ranker
from ingest.columns import Partition
from ingest.listed import ListedSource
from ingest.settings import IngestSettings
from tests.trainer.small import TOPIC, Click, record
from trainer.metrics import Metrics
from trainer.settings import TrainerSettings
from trainer.worker import Worker

N, T = 200, 1_700_000_000_000
TIMES = np.random.default_rng(0).permutation(N)
ODD = {
    "a one-item catalogue": [Click(T + i, 0, i << 16, i % 9, 5) for i in range(N)],
    "a history of the same item": [Click(T + i, 0, i << 16, 1, 5) for i in range(N)],
    "items and users that never come again": [Click(T + i, 0, i << 16, i, 1000 + i) for i in range(N)],
    "users that never come again": [Click(T + i, 0, i << 16, i, 1000 + i % 7) for i in range(N)],
    "negatives only": [Click(T + i, 0, i << 16, i % 9, i % 7, label=0.0) for i in range(N)],
    "everything at one time": [Click(T, 0, i << 16, i % 9, i % 7) for i in range(N)],
    "data out of time order": [Click(T + int(t), 0, i << 16, i % 9, i % 7) for i, t in enumerate(TIMES)],
    "one user and one item in every event": [Click(T + i, 0, i << 16, 3, 5) for i in range(N)],
    "one user with half of all events": [Click(T + i, 0, i << 16, 0 if i % 2 else i, i % 7) for i in range(N)],
    "extreme weights and labels": [
        Click(T + i, 0, i << 16, i % 9, i % 7, label=(1e6, 0.0)[i % 2], weight=(1000.0, 1e-30)[i % 3 == 0])
        for i in range(N)
    ],
}
KINDS = {
    "softmax": ({}, {}),
    "cosine": ({"similarity": "cosine", "temperature": 0.05}, {}),
    "labels": ({}, {"loss": "bce", "replay": 0, "label_smoothing": 0.0}),
}


@pytest.mark.parametrize("batch_events", [1, 32])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ODD)
def test_odd_streams_have_a_defined_end(name, kind, batch_events):
    clicks, (shape, learning) = ODD[name], KINDS[kind]
    model = ModelSettings(dim=8, history_length=4, seen_length=16, shards=1, **shape)
    settings = TrainerSettings.model_validate({"passes": 2, "group": 32, "evaluate_share": 1.0, **learning})
    few = IngestSettings(batch_events=batch_events)
    source = ListedSource({Partition(TOPIC, 0): [record(c) for c in clicks]}, few)
    store, metrics = MemoryStore(), Metrics()
    Worker(store, source, model, settings, metrics).run(lambda: source.exhausted)
    assert source.dead == source.quarantined == []
    items = store.changes("item", None)
    assert dict(zip(items.keys.tolist(), items.rows.count.tolist(), strict=True)) == {
        i: sum(c.item == i for c in clicks) for i in {c.item for c in clicks}
    }
    assert np.isfinite(items.rows.vectors).all()
    users = np.array(sorted({c.user for c in clicks}), np.uint64)
    entries = store.histories("history", users).entries
    kept = sum(min(16, sum(c.user == u and c.label > 0 for c in clicks)) for u in users.tolist())
    assert len(entries) == kept
    mirror = ItemMirror(store, model)
    mirror.refresh()
    ranker = Ranker(store, model, mirror)
    found = ranker.users(np.append(users, np.uint64(10**9)))  # the last is nobody
    assert np.isfinite(found.vectors).all()
    assert not found.found[-1]
    for vector in (found.vectors[0], None):
        ranked = ranker.recommend(vector, exclude=np.zeros(0, np.uint64), k=5)
        assert np.isfinite(ranked.scores).all()
        assert len(ranked.keys) == min(5, len({c.item for c in clicks if c.label > 0}))
    assert np.isfinite(metrics.registry.get_sample_value("towline_trainer_loss"))


def test_a_history_is_in_time_order_whatever_the_order_of_arrival():
    clicks = ODD["data out of time order"]
    source = ListedSource({Partition(TOPIC, 0): [record(c) for c in clicks]}, IngestSettings(batch_events=32))
    model, store = ModelSettings(dim=8, history_length=4, seen_length=64, shards=1), MemoryStore()
    Worker(store, source, model, TrainerSettings.model_validate({"passes": 1, "replay": 1}), Metrics()).run(
        lambda: source.exhausted
    )
    entries = store.histories("history", np.array([3], np.uint64)).entries
    own = sorted(c for c in clicks if c.user == 3)
    assert entries["time_ms"].tolist() == [c.time_ms for c in own]
    assert entries["item"].tolist() == [c.item for c in own]


def test_a_hundred_thousand_events_at_once_of_which_one_user_has_half():
    n, rng = 100_000, np.random.default_rng(1)
    users, items = np.where(np.arange(n) % 2, 0, 1 + rng.integers(0, 2000, n)), rng.zipf(1.3, n) % 5000
    lines = [
        b'{"user_id":%d,"item_id":%d,"timestamp":%d}' % (user, item, T + i)
        for i, (user, item) in enumerate(zip(users.tolist(), items.tolist(), strict=True))
    ]
    records = [b"\n".join(lines[i : i + 1000]) for i in range(0, n, 1000)]
    source = ListedSource({Partition(TOPIC, 0): records}, IngestSettings(batch_events=n))
    model, store, metrics = ModelSettings(dim=8, history_length=4, seen_length=16, shards=1), MemoryStore(), Metrics()
    settings = TrainerSettings.model_validate({"passes": 1, "replay": 0, "update_events": 0, "evaluate_share": 0.0})
    Worker(store, source, model, settings, metrics).run(lambda: source.exhausted)
    assert metrics.registry.get_sample_value("towline_trainer_batches_total") == 1
    assert source.quarantined == []
    rows = store.changes("item", None)
    counts = np.bincount(items, minlength=5000)
    assert rows.rows.count.tolist() == counts[rows.keys.astype(np.int64)].tolist()
    assert rows.rows.count.sum() == n
    assert np.isfinite(rows.rows.vectors).all()
    history = store.histories("history", np.array([0], np.uint64))
    assert history.entries["time_ms"].tolist() == (T + np.arange(n - 31, n, 2)).tolist()


def test_a_stream_that_is_idle_for_long_leaves_nothing_behind():
    source = ListedSource({Partition(TOPIC, 0): [record(c) for c in ODD["users that never come again"][:20]]})
    model, store, metrics = ModelSettings(dim=8, history_length=4, seen_length=16, shards=1), MemoryStore(), Metrics()
    worker = Worker(store, source, model, TrainerSettings(), metrics)
    while not source.exhausted:
        assert worker.step() == ""
    for table in model.tables():
        before = store.status(table)
        for _ in range(300):
            assert worker.step() == ""
        assert store.status(table) == before
    assert worker._pending.batches == 0
    assert not worker._pending.learned
    assert metrics.registry.get_sample_value("towline_trainer_restarts_total") == 0
