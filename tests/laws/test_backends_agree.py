"""Every backend holds the same bytes as the reference after the same calls."""

import random

import numpy as np
import pytest

from embedding_store.memory import MemoryStore
from embedding_store.regularization import ElasticNet
from embedding_store.schedules import Cosine
from embedding_store.spec import Adagrad, Adam, Add, Sgd, TableSpec
from tests.flushes import SOURCE, begin, contents, flush_of

SPECS = [
    TableSpec(name="adagrad", dim=7, shards=3, optimizer=Adagrad(), initial_std=0.05, seed=3, popularity_half_life=17),
    TableSpec(
        name="adam",
        dim=5,
        shards=2,
        optimizer=Adam(),
        initial_std=0.1,
        step_events=3,
        clip_norm=1.0,
        schedule=Cosine(steps=20, warmup_steps=5),
        regularization=ElasticNet(l1=0.01, l2=2.0),
    ),
    TableSpec(name="sgd", dim=1, shards=1, optimizer=Sgd(), initial_std=0.3, gap_rate=0.9),
    TableSpec(name="sums", kind="dense", dim=64, shards=2, optimizer=Add()),
    TableSpec(name="history", kind="sequence", length=4, shards=3),
]


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
@pytest.mark.parametrize("seed", range(3))
def test_the_same_random_schedule_gives_the_same_bytes(store, spec, seed):
    rng, numbers = random.Random(seed), np.random.default_rng(seed)
    reference = MemoryStore()
    for s in (store, reference):
        begin(s, spec)
    position = 0
    for step in range(60):
        roll = rng.random()
        if roll < 0.05:
            shard, jump = rng.randrange(spec.shards), position + rng.randint(0, 2)
            for s in (store, reference):
                expected = dict(s.status(spec.name)[shard].offsets).get(SOURCE)
                s.seek(spec.name, shard, SOURCE, expected, jump, "schedule")
            continue
        keys = sorted({rng.choice([rng.randrange(40), rng.getrandbits(64)]) for _ in range(rng.randint(0, 25))})
        size = rng.randint(1, 9)
        start = position + rng.choice([0, 0, 0, -2, 1])
        counts = [rng.randint(0, size) for _ in keys]
        columns = {"gradients": numbers.normal(size=(len(keys), spec.dim)) * (numbers.random((len(keys), 1)) < 0.8)}
        if spec.kind == "sequence":
            columns = {
                "appends": [(rng.randrange(len(keys)), rng.randrange(9), i, i, 0, 2.0) for i in range(5)]
                if keys
                else []
            }
        flush = flush_of(
            keys, max(0, start), max(0, start) + size, counts=counts, positives=numbers.random(len(keys)), now_ms=step,
            event_time_ms=step * 3, forget=rng.sample(range(40), rng.choice([0, 0, 3])), **columns,
        )  # fmt: skip
        assert store.apply(spec.name, flush) == reference.apply(spec.name, flush)
        offsets = [dict(s.offsets).get(SOURCE, 0) for s in reference.status(spec.name)]
        position = rng.choice(offsets)
    assert reference.status(spec.name) == store.status(spec.name)
    table = contents(reference, spec.name)
    assert contents(store, spec.name) == table
    assert len(table) > 10
    assert store.changes(spec.name, None).cursor.positions == reference.changes(spec.name, None).cursor.positions
