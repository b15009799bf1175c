"""The core does what the reference does, bit for bit, whatever becomes of rows meanwhile and whenever memory ends."""

import random

import numpy as np
import pytest

from embedding_store import eviction
from embedding_store.memory import MemoryStore
from embedding_store.records import histories_of, rows_of, values_of
from embedding_store.regularization import ElasticNet
from embedding_store.spec import Sgd, TableSpec
from tests.flushes import SOURCE, begin, flush_of
from tests.laws.test_backends_agree import SPECS as LEARNING
from tests.laws.test_lives_agree import SPECS as LIVES
from tests.laws.test_lives_agree import random_flush
from tests.native.redis_module.shards import Refused, Shards, blobs_of


@pytest.fixture
def table(library):
    opened = []

    def open_table(spec):
        opened.append(Shards(library, spec).begin())
        return opened[-1]

    yield open_table
    for shards in opened:
        shards.close()


def assert_same(shards, reference, keys):
    """Everything that a caller can read."""
    spec = shards.spec
    block, standings = shards.read(keys)
    if spec.kind == "sequence":
        ours, theirs = histories_of(block), reference.histories(spec.name, keys)
        names = ("offsets", "entries", "found", "clock", "count", "updated_ms")
    elif spec.kind == "record":
        ours, theirs = values_of(block), reference.values(spec.name, keys)
        names = ("orders", "found", "clock", "count", "updated_ms")
    else:
        ours, theirs = rows_of(block, with_state=True), reference.lookup(spec.name, keys, with_state=True)
        names = ("vectors", "state", "found", "clock", "count", "updated_ms", "last_seen", "gap", "popularity", "check")
    for name in names:
        a, b = getattr(ours, name), getattr(theirs, name)
        assert a.tobytes() == b.tobytes(), (
            name,
            np.flatnonzero(np.asarray(a != b).reshape(len(a), -1).any(axis=1))[:5],
        )
    for column in ("values", "ids"):
        if hasattr(ours, column):
            assert getattr(ours, column).tolist() == getattr(theirs, column).tolist()
    changes = reference.changes(spec.name, None)
    assert shards.keys().tolist() == np.sort(changes.keys).tolist()
    for shard, status in enumerate(reference.status(spec.name)):
        meta = shards.meta(shard)
        for name in ("clock", "generation", "rows", "event_time_ms", "produced_ms", "skipped", "stubs", "remembered",
                     "evicted", "expired", "forgotten", "late", "refused"):  # fmt: skip
            assert meta[name] == getattr(status, name), (shard, name)
    assert [str(shards.meta(s)["feed"]) for s in range(spec.shards)] == list(changes.cursor.positions)
    return standings


def learning_flush(rng, numbers, spec, step, position):
    keys = sorted({rng.choice([rng.randrange(40), rng.getrandbits(64)]) for _ in range(rng.randint(0, 25))})
    size = rng.randint(1, 9)
    start = position + rng.choice([0, 0, 0, -2, 1])
    counts = [rng.randint(0, size) for _ in keys]
    columns = {"gradients": numbers.normal(size=(len(keys), spec.dim)) * (numbers.random((len(keys), 1)) < 0.8)}
    if spec.kind == "sequence":
        columns = {
            "appends": [(rng.randrange(len(keys)), rng.randrange(9), i, i, 0, 2.0) for i in range(5)] if keys else []
        }
    return flush_of(
        keys, max(0, start), max(0, start) + size, counts=counts, positives=numbers.random(len(keys)), now_ms=step,
        event_time_ms=step * 3, forget=rng.sample(range(40), rng.choice([0, 0, 3])), **columns,
    )  # fmt: skip


def start_short_of_memory(shards, flush, rng):
    """The call with memory for a few allocations only: it is refused and changes nothing, or it needs no more."""
    for shard, blob in enumerate(blobs_of(shards.spec, flush)):
        counting = shards.counting(shard)
        before, refused = shards.meta(shard), ""
        counting.left = rng.randrange(12)
        try:
            shards.apply_blob(shard, blob)
        except Refused as e:
            refused = str(e)
        finally:
            counting.left = -1
        if refused:
            assert "memory" in refused
            # what a split of the index or a reserve takes stays
            assert before | {"memory": 0} == shards.meta(shard) | {"memory": 0}


@pytest.mark.parametrize("spec", LEARNING, ids=lambda spec: spec.name)
@pytest.mark.parametrize("seed", range(4))
def test_the_same_calls_give_the_same_bytes(table, spec, seed):
    rng, numbers = random.Random(seed), np.random.default_rng(seed)
    reference, shards = MemoryStore(), table(spec)
    begin(reference, spec)
    seen, position = set(), 0
    for step in range(60):
        flush = learning_flush(rng, numbers, spec, step, position)
        seen |= set(flush.keys.tolist())
        start_short_of_memory(shards, flush, rng)
        shards.apply(flush)
        reference.apply(spec.name, flush)
        shards.check()
        assert_same(shards, reference, np.array(sorted(seen), np.uint64))
        position = dict(reference.status(spec.name)[0].offsets)[SOURCE]


@pytest.mark.parametrize("spec", LIVES, ids=lambda spec: spec.name)
@pytest.mark.parametrize("seed", range(6))
def test_the_same_lives_give_the_same_bytes(table, spec, seed, monkeypatch):
    monkeypatch.setattr(eviction, "BATCH", 5)
    monkeypatch.setattr(eviction, "MAX_EVICTED", 12)
    monkeypatch.setattr(eviction, "MAX_FORGOTTEN", 8)
    rng = random.Random(seed)
    reference, shards = MemoryStore(), table(spec)
    begin(reference, spec)
    seen, at = set(), 0
    for _ in range(60):
        size = rng.randint(1, 6)
        flush = random_flush(rng, spec, at, size)
        seen |= set(flush.keys.tolist()) | set(flush.forget.tolist())
        cursor = reference.changes(spec.name, None).cursor
        if rng.random() < 0.5:
            start_short_of_memory(shards, flush, rng)
        shards.apply(flush)
        reference.apply(spec.name, flush)
        shards.check()
        assert_same(shards, reference, np.array(sorted(seen), np.uint64))
        changed = reference.changes(spec.name, cursor)
        ours = [shards.changes(s, int(p)) for s, p in enumerate(cursor.positions)]
        assert sorted(np.concatenate(ours).tolist()) == sorted([*changed.keys.tolist(), *changed.deleted.tolist()])
        at += size


def start_short_at_every_allocation(shards, flush):
    """The call, first without memory, then with one allocation more each time, until that is enough."""
    for shard, blob in enumerate(blobs_of(shards.spec, flush)):
        counting = shards.counting(shard)
        before, outcome, allocations = shards.meta(shard), "", 0
        while not outcome:
            counting.left = allocations
            try:
                outcome = shards.apply_blob(shard, blob)
            except Refused as e:
                refused = str(e)
            finally:
                counting.left = -1
            if not outcome:
                assert "memory" in refused
                assert before | {"memory": 0} == shards.meta(shard) | {"memory": 0}
            assert counting.held == shards.meta(shard)["memory"]
            if allocations % 5 == 0:
                shards.check()
            allocations += 1
        assert outcome == "applied"
        assert allocations > 5


DECAYING = TableSpec(
    name="decaying", dim=3, shards=1, optimizer=Sgd(), step_events=3, regularization=ElasticNet(l1=0.01, l2=0.2),
    remember_events=400,
)  # fmt: skip


@pytest.mark.parametrize("spec", [*LIVES, DECAYING], ids=lambda spec: spec.name)
def test_calls_of_several_blocks_give_the_same_bytes_wherever_memory_ends(table, spec):
    """Rows get their ids late, in the middle of a batch, while the index is split and other ids want their keys."""
    rng = random.Random(9)
    reference, shards = MemoryStore(), table(spec)
    begin(reference, spec)
    seen, at = set(), 0
    for _ in range(12):
        size = rng.randint(40, 90)
        flush = random_flush(rng, spec, at, size, draws=(64, 65, 300, 600), known=200)
        seen |= set(flush.keys.tolist()) | set(flush.forget.tolist())
        start_short_at_every_allocation(shards, flush)
        reference.apply(spec.name, flush)
        shards.check()
        assert_same(shards, reference, np.array(sorted(seen), np.uint64))
        at += size
