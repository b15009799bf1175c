"""Does it learn, is the measure honest, and is what is measured what is served."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tensorflow as tf

from embedding_store.memory import MemoryStore
from embedding_store.mirror import ItemMirror
from embedding_store.model import ModelSettings
from embedding_store.ranking import Ranker
from ingest.columns import Partition
from ingest.listed import ListedSource
from ingest.settings import IngestSettings
from tests.trainer.small import MODEL, TOPIC, Click, declare, entries_of, events_of, store_clicks
from trainer.dense import DenseWorker
from trainer.examples import ExampleReader
from trainer.layered_step import finished, forward
from trainer.learner import Learner
from trainer.metrics import Metrics
from trainer.prequential import Prequential
from trainer.replay import ReplayBuffer
from trainer.settings import TrainerSettings
from trainer.worker import Worker

START_MS = 1_700_000_000_000
EVENTS, USERS, CLUSTERS, PER_CLUSTER = 6000, 300, 12, 50


def planted(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(users, items) of a stream: a user likes a cluster of items, and now and then moves on to another."""
    rng = np.random.default_rng(seed)
    taste, seen = rng.integers(0, CLUSTERS, USERS), set()
    users, items = np.zeros(EVENTS, np.int64), np.zeros(EVENTS, np.int64)
    n = 0
    while n < EVENTS:
        user = int(rng.integers(0, USERS))
        if rng.random() < 0.02:
            taste[user] = rng.integers(0, CLUSTERS)
        cluster = taste[user] if rng.random() < 0.9 else rng.integers(0, CLUSTERS)
        item = int(cluster) * PER_CLUSTER + int(PER_CLUSTER * rng.random() ** 2)  # some are more popular
        if (user, item) not in seen:
            seen.add((user, item))
            users[n], items[n] = user, item
            n += 1
    return users, items


def hit_rates(users: np.ndarray, items: np.ndarray, replay: int) -> tuple[float, float]:
    """HR@10 of the model and of decayed popularity, test then train, by a worker over the whole stream."""
    log = [
        json.dumps({"user_id": int(u), "item_id": int(i), "timestamp": START_MS + n}).encode()
        for n, (u, i) in enumerate(zip(users, items, strict=True))
    ]
    source = ListedSource({Partition(TOPIC, 0): log}, IngestSettings(batch_events=64), START_MS)
    model = ModelSettings(dim=16, history_length=10, shards=1)
    settings = TrainerSettings.model_validate({"replay": replay, "evaluate_share": 1.0, "group": 64})
    metrics = Metrics()
    Worker(MemoryStore(), source, model, settings, metrics).run(lambda: source.exhausted)
    sample = metrics.registry.get_sample_value
    tests = sample("towline_prequential_tests")
    assert tests == EVENTS
    assert not sample("towline_trainer_quarantined_total")
    model_hits, popular_hits = (sample("towline_prequential_hits", {"ranking": r}) for r in ("model", "popularity"))
    return model_hits / tests, popular_hits / tests


def test_a_planted_stream_is_learned_and_a_shuffled_one_is_not():
    users, items = planted(0)
    model, popularity = hit_rates(users, items, 4)
    assert model > 2.5 * popularity
    # the same items at about the same time, dealt to users at random: nothing to know but popularity
    rng = np.random.default_rng(1)
    window = 500
    shuffled = np.concatenate([rng.permutation(items[at : at + window]) for at in range(0, EVENTS, window)])
    pairs: set[tuple[int, int]] = set()
    for n in range(EVENTS):  # a pair comes once, as in the planted stream
        while (users[n], shuffled[n]) in pairs:
            users[n] = rng.integers(0, USERS)
        pairs.add((int(users[n]), int(shuffled[n])))
    model, popularity = hit_rates(users, shuffled, 4)
    assert model < 1.25 * popularity


def reader_of(store, model):
    return ExampleReader(store, model, ReplayBuffer(10, model.history_length, np.random.default_rng(0)), 0)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"clocks": (0.9, 0.6), "learned_gates": True},
        {"user_id_vector": True},
        {"dense_layers": (6, 4), "user_id_vector": True},
        {"dense_layers": (4,), "learned_gates": True},
        {"similarity": "cosine", "temperature": 0.1},
        {"temperature": 0.5, "user_id_vector": True},
        {"similarity": "cosine", "dense_layers": (6, 4), "temperature": 0.2},
        {"successors": 8, "learned_gates": True},
    ],
)
def test_the_vector_that_is_trained_is_the_one_that_is_served(changes):
    """Training-serving skew: the learner's towers against the ranker's and the mirror's, user by user."""
    model = MODEL.model_copy(update=changes)
    store = MemoryStore()
    rng = np.random.default_rng(0)
    log = [
        json.dumps(
            {"user_id": int(rng.integers(0, 9)), "item_id": int(rng.integers(20, 60)), "timestamp": START_MS + n}
        )
        for n in range(300)
    ]
    source = ListedSource({Partition(TOPIC, 0): [r.encode() for r in log]}, IngestSettings(batch_events=50), START_MS)
    settings = TrainerSettings.model_validate({"replay": 1, "group": 16, "dense_sync_every": 1, "replay_drop": 0.0})
    Worker(store, source, model, settings, Metrics()).run(lambda: source.exhausted)

    mirror = ItemMirror(store, model)
    mirror.refresh()
    later = events_of([Click(START_MS + 10**6, 0, 1 << 40, user, 20 + user) for user in range(9)])
    examples, _ = reader_of(store, model).read(later, np.zeros(0, np.uint64), entries_of([]))
    dense = DenseWorker(store, model, 0.01)
    dense.read()
    learner = Learner(model, settings, dense, np.random.default_rng(0))
    taken, step = {}, learner._step

    def spy(pooled, items, *rest):
        if not taken:  # the first pass: later ones have learned
            taken.update(pooled=pooled.copy(), items=items.copy(), prior=rest[0].copy())
        return step(pooled, items, *rest)

    learner._step = spy
    user_layers, _ = dense.towers(dense.variable + 0.0)
    learner.learn(examples, 300)
    n = len(later)
    served = Ranker(store, model, mirror).users(np.arange(9, dtype=np.uint64))
    assert served.warm.all()
    outputs = finished(forward(user_layers, taken["pooled"][:n]), model) / model.temperature
    np.testing.assert_allclose(outputs, served.vectors, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(taken["prior"][:n], served.prior, rtol=1e-5)
    items = mirror.items(later.item_key)
    assert items.found.any()
    trained = np.asarray(finished(tf.constant(taken["items"][:n]), model))  # behind their layers
    np.testing.assert_allclose(trained[items.found], items.vectors[items.found], rtol=1e-5, atol=1e-6)
    assert np.abs(served.vectors).max() > 1e-3


@pytest.mark.parametrize("weight", [0.0, 0.5])
@pytest.mark.parametrize("user_id_vector", [False, True])
def test_a_test_is_what_the_protocol_says(weight, user_id_vector):
    """Against a sort by hand: candidates a positive has named, minus the user's own; ties half; unseen a miss."""
    model = MODEL.model_copy(update={"popularity_weight": weight, "user_id_vector": user_id_vector, "seen_length": 50,
                                     "popularity_floor": 1e-12})  # fmt: skip
    store, rng = MemoryStore(), np.random.default_rng(3)
    declare(store, model)
    stored = [Click(n, 0, n, int(rng.integers(0, 6)), int(rng.integers(50, 80))) for n in range(60)]
    store_clicks(store, stored[:40], gradient=20.0)
    store_clicks(store, stored[40:], gradient=20.0)
    pending = [Click(70 + n, 0, 70 + n, int(rng.integers(0, 6)), int(rng.integers(50, 80))) for n in range(10)]
    # users 6 and 7 are new; item 90 was never seen; 50 may be somebody's already
    batch = [
        Click(100 + n, 0, 100 + n, user, int(rng.choice([90, *range(50, 80)])), float(rng.random() < 0.8))
        for n, user in enumerate(rng.integers(0, 8, 60).tolist())
    ]
    users = np.array([c.user for c in pending], np.uint64)
    events = events_of(batch)
    examples, past = reader_of(store, model).read(events, users, entries_of(pending))
    prequential = Prequential(store, model, 10, 1.0)
    prequential.measure(events, past, examples)

    keys = np.sort(store.changes("item", None).keys)
    rows = store.lookup("item", keys)
    with np.errstate(divide="ignore"):
        # popularity decays since each item's own last event; the mirror need not know the clock
        log_p = np.log(rows.popularity) + np.log(2) * rows.last_seen / model.popularity_half_life
    clock, at_key = store.status("item")[0].clock, {int(key): i for i, key in enumerate(keys)}
    ranks, popular, last = [], [], None
    for n, event in enumerate(batch):
        if last is not None and last.label and last.item in at_key:  # counts for those behind it
            came = np.log(2) * (clock + n) / model.popularity_half_life
            log_p[at_key[last.item]] = np.logaddexp(log_p[at_key[last.item]], came)
        last = event
        if event.label == 0:
            continue
        known = sorted(c for c in [*stored, *pending, *batch[:n]] if c.user == event.user and c.label)
        own = {c.item for c in known}
        if event.item in own:
            continue
        recent = [c.item for c in known[::-1][: model.history_length]]
        w = np.array([model.clocks[0] ** k if item in keys else 0.0 for k, item in enumerate(recent)])
        x = None
        if w.sum():
            at = np.searchsorted(keys, np.array(recent, np.uint64)[w > 0])
            x = w[w > 0] @ rows.vectors[at].astype(np.float64) / w.sum()
        free = np.array([k not in own for k in keys.tolist()])
        if event.item not in keys:
            ranks.append(np.inf)
            popular.append(np.inf)
            continue
        t = np.searchsorted(keys, event.item)

        def place(scores, t=t, free=free):
            others = np.flatnonzero(free & (np.arange(len(keys)) != t))
            return 1 + (scores[others] > scores[t]).sum() + 0.5 * (scores[others] == scores[t]).sum()

        popular.append(place(log_p.astype(np.float32)))
        ranks.append(popular[-1] if x is None else place(rows.vectors @ x + weight * log_p))
    ranks, popular = np.array(ranks), np.array(popular)
    assert np.isinf(ranks).any()
    assert prequential.tests == len(ranks) > 20
    assert prequential.hits == (ranks <= 10).sum() > 0
    assert prequential.popular_hits == (popular <= 10).sum()
    assert prequential.reciprocal_ranks == pytest.approx((1 / ranks).sum(), rel=1e-6)
    assert prequential.ndcg == pytest.approx((1 / np.log2(1 + ranks[ranks <= 10])).sum(), rel=1e-6)

    nothing = Prequential(store, model, 10, 0.0)
    nothing.measure(events, past, examples)
    assert nothing.tests == 0
