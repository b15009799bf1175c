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


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ODD)
def test_odd_streams_have_a_defined_end(name, kind):
    clicks, (shape, learning) = ODD[name], KINDS[kind]
    model = ModelSettings(dim=8, history_length=4, seen_length=16, shards=1, **shape)
    settings = TrainerSettings.model_validate({"passes": 2, "group": 32, "evaluate_share": 1.0, **learning})
    source = ListedSource({Partition(TOPIC, 0): [record(c) for c in clicks]}, IngestSettings(batch_events=32))
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
