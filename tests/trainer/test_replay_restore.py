"""A worker that begins anew replays what the store remembers, and nobody else."""

from __future__ import annotations

import numpy as np

from embedding_store.memory import MemoryStore
from ingest.columns import Partition
from ingest.listed import ListedSource
from ingest.settings import IngestSettings
from tests.flushes import flush_of
from tests.trainer.small import MODEL, SOURCE, TOPIC, Click, declare, record, store_clicks
from trainer.metrics import Metrics
from trainer.replay import ReplayBuffer
from trainer.replay_restore import fill
from trainer.settings import TrainerSettings
from trainer.worker import Worker

T = 1_700_000_000_000


def filled(store, capacity=1000, seed=0):
    rng = np.random.default_rng(seed)
    buffer = ReplayBuffer(capacity, MODEL.history_length, rng)
    n = fill(buffer, store, MODEL.history_length, rng)
    return buffer, n


def kept(buffer):
    """{(user, item): (history newest first, items ever)}."""
    n = len(buffer)
    return {
        (int(buffer._user[i]), int(buffer._item[i])): (
            buffer._recent[i, : buffer._lengths[i]].tolist(),
            int(buffer._ever[i]),
        )
        for i in range(n)
    }


def world(users=3, each=5):
    store = MemoryStore()
    declare(store, MODEL)
    clicks = [Click(T + k, 0, (u * each + k) << 16, 100 + u, 10 * u + k) for u in range(users) for k in range(each)]
    store_clicks(store, clicks)
    return store


def test_every_positive_comes_back_with_its_history_as_of_its_own_time():
    buffer, n = filled(world())
    assert n == len(buffer) == buffer._seen == 15
    found = kept(buffer)
    for u in range(3):
        for k in range(5):
            newest_first = [10 * u + j for j in range(k - 1, -1, -1)][: MODEL.history_length]
            assert found[100 + u, 10 * u + k] == (newest_first, k)


def test_an_empty_store_fills_nothing():
    store = MemoryStore()
    declare(store, MODEL)
    assert filled(store)[1] == 0


def test_it_is_bounded_and_the_rest_counts_as_seen(monkeypatch):
    monkeypatch.setattr("trainer.replay_restore._USERS", 10)
    store = world(users=400, each=5)
    buffer, offered = filled(store, capacity=50)
    assert (len(buffer), offered) == (50, 50)
    assert buffer._seen == 2000
    drawn = np.zeros(400)
    for seed in range(200):
        users = filled(store, 50, seed)[0]._user
        drawn[np.unique(users[users > 0].astype(np.int64)) - 100] += 1
    assert drawn.sum() == 200 * 10
    assert 3 < drawn.var() < 7, "200 fair draws of 10 among 400: 4.9"


def test_who_was_forgotten_does_not_come_back():
    store = world()
    store.apply("history", flush_of([], 15, 16, forget=[101], source=SOURCE, gradients=None))
    assert {user for user, _ in kept(filled(store)[0])} == {100, 102}


def worker_of(store, records, **knobs):
    source = ListedSource({Partition(TOPIC, 0): records}, IngestSettings(batch_events=8), T + 10**9)
    settings = TrainerSettings.model_validate({"passes": 1, "update_events": 0, "group": 16, "replay": 2, **knobs})
    return Worker(store, source, MODEL, settings, Metrics()), source


def test_a_restarted_worker_and_one_whose_store_was_rewound_have_their_past():
    records = [record(Click(T + i, 0, i << 16, i % 5, 50 + i % 11)) for i in range(40)]
    store = MemoryStore()
    first, source = worker_of(store, records)
    first.run(lambda: source.exhausted)
    second, source = worker_of(store, records)
    second.step()
    assert kept(second._replay).keys() == kept(first._replay).keys()
    store.raise_generation()
    second._replay.add(*(np.full(1, 7, np.uint64),) * 2, np.zeros((1, 3), np.uint64), *(np.zeros(1, np.int64),) * 2)
    second._ready = False
    second.step()
    assert kept(second._replay).keys() == kept(first._replay).keys(), "what the old store taught is gone"
    without, _ = worker_of(store, records, replay=0)
    without.step()
    assert len(without._replay) == 0
