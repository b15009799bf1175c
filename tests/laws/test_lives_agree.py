"""Every backend holds the same bytes as the reference, and each its bounds, whatever becomes of rows meanwhile."""

import random

import numpy as np
import pytest

from embedding_store import eviction
from embedding_store.memory import MemoryStore
from embedding_store.module_store import placing
from embedding_store.spec import Adagrad, TableSpec
from tests.flushes import begin, contents, flush_of

LIVES = {"ttl_s": 0.025, "max_rows": 12, "remember_events": 60}
SPECS = [
    TableSpec(name="admitted", dim=3, shards=2, optimizer=Adagrad(), admit_after=3, max_stubs=10, **LIVES),
    TableSpec(name="aging", dim=1, shards=1, optimizer=Adagrad(), initial_std=0.1, ttl_s=0.02, remember_events=40),
    TableSpec(name="bounded", dim=1, shards=3, optimizer=Adagrad(), max_rows=9),
    TableSpec(name="history", kind="sequence", length=4, shards=2, **LIVES),
    TableSpec(name="catalogue", kind="record", length=20, shards=2, **LIVES),
    TableSpec(name="plain", dim=2, shards=2, optimizer=Adagrad(), remember_events=30),
]


def random_flush(rng, spec, at, size, draws=(0, 3, 9, 40), known=30):
    """Own events of known and unknown places, gradients, forgets with and without places, and ids that collide.

    draws: how many keys are drawn. known: half of them are below it.
    """
    keys = sorted({rng.choice([rng.randrange(known), rng.randrange(1 << 40)]) for _ in range(rng.choice(draws))})
    n = len(keys)
    own = [(rng.randrange(n), rng.randrange(90), (at + i) << 16, rng.randrange(2)) for i in range(size)] if n else []
    forget = rng.sample(range(known), rng.choice([0, 0, 0, known // 15]))
    counts = [sum(o[0] == i for o in own) for i in range(n)]
    identities = [
        (rng.choice([7, 7, 7, 8]), rng.choice([b"a", b"a", b"b"]) + str(k).encode()) if c else (0, b"")
        for k, c in zip(keys, counts, strict=True)
    ]
    columns = {"own": own} if rng.random() < 0.8 else {"counts": counts}
    if spec.kind == "sequence":
        columns["appends"] = [(o[0], o[1], o[2], rng.randrange(99), o[3], 1.0) for o in own]
    elif spec.kind == "record":
        columns["values"] = [(*o, rng.randbytes(rng.randrange(20))) for o in own]
    else:
        columns["gradients"] = [[rng.choice([0, 0, 1, -2])] * spec.dim for _ in keys] if n else np.zeros((0, spec.dim))
    if forget and rng.random() < 0.7:
        columns["forget_orders"] = [(rng.randrange(90), (at + size) << 16, rng.randrange(2)) for _ in forget]
        columns["forget_checks"] = [rng.choice([7, 7, 7, 8]) for _ in forget]
    now_ms = max(0, at + rng.randint(-3, 3))
    return flush_of(keys, at, at + size, identities=identities, forget=forget, now_ms=now_ms, **columns)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
@pytest.mark.parametrize("seed", range(2))
def test_the_same_lives_give_the_same_bytes(store, spec, seed, monkeypatch):
    monkeypatch.setattr(eviction, "BATCH", 5)
    monkeypatch.setattr(eviction, "MAX_EVICTED", 12)
    monkeypatch.setattr(eviction, "MAX_FORGOTTEN", 8)
    monkeypatch.setattr(placing, "CALLS", seed)  # the module asks for places of own events again and again
    rng = random.Random(seed)
    reference = MemoryStore()
    for s in (store, reference):
        begin(s, spec)
    cursors, held, at = [store.changes(spec.name, None).cursor], {}, 0
    for _ in range(60):
        size = rng.randint(1, 6)
        flush = random_flush(rng, spec, at, size)
        assert store.apply(spec.name, flush) == reference.apply(spec.name, flush)
        at += size
        assert store.status(spec.name) == reference.status(spec.name)
        changes = store.changes(spec.name, cursors[-1])
        assert not changes.rescan
        cursors.append(changes.cursor)
        for key in changes.deleted.tolist():
            held.pop(key, None)
        held |= dict(zip(changes.keys.tolist(), changes.rows.count.tolist(), strict=True))
        if spec.max_rows:
            assert all(s.rows <= spec.max_rows // spec.shards for s in store.status(spec.name))
        if spec.admit_after:
            assert all(s.stubs <= spec.max_stubs // spec.shards for s in store.status(spec.name))
    table = contents(reference, spec.name)
    assert contents(store, spec.name) == table
    scan = store.changes(spec.name, None)
    assert held == dict(zip(scan.keys.tolist(), scan.rows.count.tolist(), strict=True))
    total = {
        name: sum(getattr(s, name) for s in store.status(spec.name))
        for name in ("evicted", "expired", "forgotten", "late", "refused")
    }
    assert (total["evicted"] > 0) <= (spec.max_rows is not None)
    assert (total["expired"] > 0) <= (spec.ttl_s is not None)
    assert (total["evicted"] + total["expired"] > 0) == bool(spec.max_rows or spec.ttl_s)
    assert total["late"] > 0
    if not spec.max_rows:  # where rows are few, they seldom live to be forgotten or their key to be wanted by another
        assert min(total["forgotten"], total["refused"]) > 0
