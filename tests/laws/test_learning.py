"""Learning in the store, end to end: lazy = eager, and neither clock nor decay knows how the stream was cut."""

from dataclasses import replace

import numpy as np
import pytest

from embedding_store.contract import Range, Source
from embedding_store.decay import clocks_of
from embedding_store.errors import BadRequest, SpecConflict
from embedding_store.regularization import L1, L2, ElasticNet, NoRegularization
from embedding_store.schedules import Constant, Cosine, InverseTime
from embedding_store.spec import Adagrad, Adam, Add, RowwiseAdagrad, Sgd, TableSpec
from native import optimizers
from tests.eager import EagerTable
from tests.flushes import SOURCE, begin, contents, flush_of, outcomes, whole_state

SGD, ADAGRAD, ROWWISE, ADAM = (kind(learning_rate=0.2) for kind in (Sgd, Adagrad, RowwiseAdagrad, Adam))
NONE, RIDGE, LASSO, ELASTIC = NoRegularization(), L2(l2=0.3), L1(l1=0.01), ElasticNet(l1=0.01, l2=0.2)
FLAT, INVERSE, COSINE = Constant(warmup_steps=4), InverseTime(decay=0.2), Cosine(steps=9, floor=0.1, warmup_steps=2)
CELLS = [
    (SGD, NONE, COSINE), (SGD, RIDGE, FLAT), (SGD, RIDGE, INVERSE), (SGD, LASSO, COSINE), (SGD, ELASTIC, INVERSE),
    (ADAGRAD, RIDGE, COSINE), (ADAGRAD, LASSO, INVERSE), (ADAGRAD, ELASTIC, FLAT), (ROWWISE, RIDGE, INVERSE),
    (ROWWISE, ELASTIC, COSINE), (ADAM, NONE, INVERSE), (ADAM, RIDGE, COSINE), (ADAM, ELASTIC, INVERSE),
]  # fmt: skip
DECAYING = TableSpec(
    name="t", dim=3, shards=2, optimizer=ADAGRAD, regularization=ELASTIC, schedule=INVERSE, step_events=10,
    initial_std=0.3,
)  # fmt: skip
KEYS = np.arange(16, dtype=np.uint64)


@pytest.mark.parametrize(
    ("optimizer", "regularization", "schedule"), CELLS, ids=["-".join(part.kind for part in cell) for cell in CELLS]
)
def test_lazy_is_eager(opener, optimizer, regularization, schedule):
    """What is looked up, and what the feed tells, is what eager regularization of the whole table would hold."""
    writer, reader = opener(), opener()
    spec = begin(
        writer,
        DECAYING.model_copy(
            update={"optimizer": optimizer, "regularization": regularization, "schedule": schedule, "step_events": 7}
        ),
    )
    rng = np.random.default_rng(2)
    eager = EagerTable(spec, dict(enumerate(reader.lookup("t", KEYS).vectors)).__getitem__)
    cursor = None
    for at in range(30):
        chosen = sorted(rng.choice(16, int(rng.integers(0, 4)), replace=False).tolist())
        events, g = int(rng.integers(1, 20)), rng.normal(size=(len(chosen), 3)).astype(np.float32)
        writer.apply("t", flush_of(chosen, at, at + 1, gradients=g, events=events))
        eager.apply(events, dict(zip(chosen, g, strict=True)))
        if at % 3 == 0:
            rows = reader.lookup("t", KEYS, with_state=True)
            np.testing.assert_allclose(rows.vectors, eager.vectors(KEYS.tolist()), rtol=2e-5, atol=2e-6)
            stored = sorted(eager.rows)
            np.testing.assert_allclose(rows.state[stored], eager.states(stored), rtol=1e-5, atol=1e-7)
            changes = reader.changes("t", cursor)
            cursor = changes.cursor
            told = eager.vectors(changes.keys.tolist()).reshape(-1, 3)
            np.testing.assert_allclose(changes.rows.vectors, told, rtol=2e-5, atol=2e-6)
            assert changes.clock == (eager.clock,) * spec.shards


@pytest.mark.parametrize("size", [1, 7, 64, 257])
def test_clock_and_decay_do_not_depend_on_batch_size(store, size):
    """257 events after a row's last gradient, in batches of any size, idle or with other rows: the same bits."""
    begin(store, DECAYING)
    store.apply("t", flush_of([1, 2], 0, 5, gradients=np.ones((2, 3))))
    for lo in range(5, 262, size):
        stop = min(lo + size, 262)
        other = [3] if lo % 2 else []
        store.apply("t", flush_of(other, lo, stop, gradients=np.ones((len(other), 3))))
    assert {s.clock for s in store.status("t")} == {262}
    got = store.lookup("t", np.array([1, 2], np.uint64))
    assert got.clock.tolist() == [5, 5]
    begin(store, DECAYING.model_copy(update={"name": "whole"}))
    store.apply("whole", flush_of([1, 2], 0, 5, gradients=np.ones((2, 3))))
    store.apply("whole", flush_of([], 5, 262))
    np.testing.assert_array_equal(got.vectors, store.lookup("whole", np.array([1, 2], np.uint64)).vectors)


def test_idle_flushes_change_no_bit_of_what_is_learned(store):
    """The same gradients at the same clocks, with and without flushes of nothing between them, and in two sources."""
    rng, other = np.random.default_rng(0), Source("clicks", 1)
    names = ("plain", "idle", "sources")
    for name in names:
        begin(store, DECAYING.model_copy(update={"name": name}), SOURCE, other)
    clock = 0
    places = {SOURCE: 0, other: 0}
    for _ in range(12):
        events = int(rng.integers(1, 45))
        keys = sorted(rng.choice(9, 3, replace=False).tolist())
        columns = {"gradients": rng.normal(size=(3, 3)), "counts": rng.integers(0, 2, 3)}
        stop = clock + events
        store.apply("plain", flush_of(keys, clock, stop, **columns))
        for at in range(clock, stop - 1):
            store.apply("idle", flush_of([], at, at + 1))
        store.apply("idle", flush_of(keys, stop - 1, stop, **columns))
        if events > 1:
            ranges = (Range(other, places[other], places[other] + events - 1),)
            places[other] += events - 1
            store.apply("sources", flush_of([], 0, 0, ranges=ranges, events=events - 1))
        ranges = (Range(SOURCE, places[SOURCE], places[SOURCE] + 1),)
        places[SOURCE] += 1
        store.apply("sources", flush_of(keys, 0, 0, ranges=ranges, events=1, **columns))
        clock = stop
    tables = [contents(store, name) for name in names]
    assert tables[0] == tables[1] == tables[2]
    assert {s.clock for name in names for s in store.status(name)} == {clock}


def test_reading_decays_without_a_write_and_a_missing_row_has_missed_nothing(store):
    begin(store, DECAYING)
    keys = np.array([1, 99], np.uint64)
    initial = store.lookup("t", keys).vectors
    store.apply("t", flush_of([1], 0, 5, gradients=[[1, 1, 1]]))
    first = store.lookup("t", keys).vectors
    store.apply("t", flush_of([], 5, 95))
    before = whole_state(store, "t")
    rows = store.lookup("t", keys)
    assert (np.abs(rows.vectors[0]) < np.abs(first[0])).all()
    np.testing.assert_array_equal(rows.vectors[1], initial[1])
    assert rows.clock.tolist() == [5, 0]
    np.testing.assert_array_equal(store.lookup("t", keys).vectors, rows.vectors)
    assert whole_state(store, "t") == before
    changes = store.changes("t", None)
    np.testing.assert_array_equal(changes.rows.vectors, rows.vectors[:1])
    store.apply("t", flush_of([99], 95, 96, gradients=[[0, 0, 0]], counts=[1]))
    np.testing.assert_array_equal(store.lookup("t", keys).vectors[1], initial[1])


def test_an_own_event_alone_takes_the_missed_decay_in(store):
    """It moves the row's clock, and what that clock stands for with it."""
    begin(store, DECAYING)
    store.apply("t", flush_of([1], 0, 5, gradients=[[1, 1, 1]]))
    store.apply("t", flush_of([], 5, 95))
    read = store.lookup("t", KEYS[1:2])
    store.apply("t", flush_of([1], 95, 96, counts=[1]))
    written = store.lookup("t", KEYS[1:2])
    np.testing.assert_array_equal(read.vectors, written.vectors)
    assert written.clock.tolist() == [96]


def test_a_row_that_begins_late_or_anew_has_missed_nothing(store):
    """Counted at clock 5 and admitted at 95; forgotten at 96 and created again at 195: each begins as its initial."""
    spec = begin(store, DECAYING.model_copy(update={"admit_after": 2}))
    initial = store.lookup("t", KEYS[1:2]).vectors
    store.apply("t", flush_of([1], 0, 5, counts=[1]))
    store.apply("t", flush_of([], 5, 94))
    np.testing.assert_array_equal(store.lookup("t", KEYS[1:2]).vectors, initial)
    store.apply("t", flush_of([1], 94, 95, gradients=[[0, 0, 0]], counts=[1]))
    rows = store.lookup("t", KEYS[1:2])
    np.testing.assert_array_equal(rows.vectors, initial)
    assert rows.found.all()
    store.apply("t", flush_of([], 95, 96, forget=[1]))
    store.apply("t", flush_of([], 96, 190))
    store.apply("t", flush_of([1], 190, 195, counts=[spec.admit_after]))
    np.testing.assert_array_equal(store.lookup("t", KEYS[1:2]).vectors, initial)


def test_each_shard_decays_by_its_own_clock(store):
    store.create(DECAYING)
    for shard, offset in enumerate([0, 5]):
        store.seek("t", shard, SOURCE, None, offset, "test")
    store.apply("t", flush_of(KEYS.tolist(), 0, 5, events=5, gradients=np.ones((16, 3))))
    store.apply("t", flush_of(KEYS.tolist(), 5, 6, events=5, gradients=np.ones((16, 3))))
    store.apply("t", flush_of([], 6, 7, events=55))
    assert [s.clock for s in store.status("t")] == [65, 60]
    clocks = clocks_of(KEYS, [65, 60])
    store.create(DECAYING.model_copy(update={"name": "untouched"}))
    initial = store.lookup("untouched", KEYS).vectors.astype(np.float64)
    rows = store.lookup("t", KEYS)
    assert rows.found.all()
    for key in range(16):
        eager = EagerTable(DECAYING, initial.__getitem__)
        if clocks[key] == 65:
            eager.apply(5, {key: [1, 1, 1]})
        eager.apply(5, {key: [1, 1, 1]})
        eager.apply(55, {})
        np.testing.assert_allclose(rows.vectors[key], eager.vectors([key])[0], rtol=2e-5, atol=2e-6)


def test_long_gradients_are_cut_before_the_optimizer(store):
    spec = TableSpec(name="t", dim=2, shards=1, optimizer=Sgd(learning_rate=1.0), clip_norm=5.0)
    begin(store, spec)
    store.apply("t", flush_of([1, 2, 3], 0, 1, gradients=[[30, 40], [3, 4], [1e15, 0]]))
    np.testing.assert_allclose(store.lookup("t", KEYS[1:4]).vectors, [[-3, -4], [-3, -4], [-5, 0]], rtol=1e-6)


@pytest.mark.parametrize("optimizer", [Add(), SGD, ADAGRAD, ROWWISE], ids=lambda o: o.kind)
def test_deltas_merge_in_the_four_cells(opener, optimizer):
    """{stored, missing} × {the client saw it, it did not}: stored or initial, plus the sum of all deltas."""
    one, two = opener(), opener()
    spec = begin(one, TableSpec(name="t", dim=2, shards=2, initial_std=0.1, optimizer=optimizer))
    stored, missing = 5, 6
    keys = np.array([stored, missing], np.uint64)
    start = one.lookup("t", keys, with_state=True)
    one.apply("t", deltas_of(spec, [stored], 0, [[1, 2]], 0.5))
    two.lookup("t", keys[1:])  # two saw the missing row, not the stored one
    two.apply("t", deltas_of(spec, [stored, missing], 1, [[1, 0], [4, 4]], 0.25))
    one.lookup("t", keys[:1])  # one saw the stored row, and not that `missing` is there now
    one.apply("t", deltas_of(spec, [stored, missing], 2, [[0, 2], [2, 2]], 0.125))
    rows = one.lookup("t", keys, with_state=True)
    np.testing.assert_allclose(rows.vectors, start.vectors + np.array([[2, 4], [6, 6]]), rtol=1e-6)
    if spec.state_dim:
        np.testing.assert_allclose(rows.state, start.state + np.array([[0.875], [0.375]]), rtol=1e-6)
    assert rows.found.all()


def deltas_of(spec, keys, at, vectors, state):
    flush = flush_of(keys, at, at + 1, gradients=vectors)
    n = len(keys)
    given = np.full((n, spec.state_dim), state, np.float32) if spec.state_dim else None
    return replace(flush, mode="deltas", state_deltas=given)


def test_one_worker_learns_the_same_in_either_mode(store):
    """The worker's own numba optimizer, its changes sent as deltas; the store's decay falls between its reads."""
    lr, epsilon = np.float32(0.2), np.float32(ADAGRAD.epsilon)
    spec = DECAYING.model_copy(update={"schedule": Constant()})
    for name in ("gradients", "deltas"):
        begin(store, spec.model_copy(update={"name": name}))
    rng = np.random.default_rng(1)
    for at in range(20):
        keys = np.sort(rng.choice(8, 3, replace=False)).astype(np.uint64)
        g = rng.normal(size=(3, 3)).astype(np.float32)
        store.apply("gradients", flush_of(keys.tolist(), at, at + 1, gradients=g, events=9))
        rows = store.lookup("deltas", keys, with_state=True)
        w, s = rows.vectors.copy(), rows.state.copy()
        optimizers.adagrad(w, s, g, lr, epsilon)
        flush = flush_of(keys.tolist(), at, at + 1, gradients=w - rows.vectors, events=9)
        store.apply("deltas", replace(flush, mode="deltas", state_deltas=s - rows.state))
    one, two = (store.lookup(name, KEYS[:8], with_state=True) for name in ("gradients", "deltas"))
    # a call's decay comes before its gradient or delta, so both see the same row but for a rounding of the difference
    np.testing.assert_allclose(one.vectors, two.vectors, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(one.state, two.state, rtol=1e-5)


def test_a_delta_of_state_alone_is_kept(store):
    spec = begin(store, TableSpec(name="t", dim=2, shards=1, optimizer=ADAGRAD))
    store.apply("t", deltas_of(spec, [1], 0, [[0, 0]], 0.5))
    rows = store.lookup("t", KEYS[1:2], with_state=True)
    assert rows.found.all()
    np.testing.assert_allclose(rows.state, [[0.6, 0.6]], rtol=1e-6)


def _flush(**change):
    return replace(flush_of([1, 2], 5, 6, gradients=np.ones((2, 3))), **change)


_SIX = np.ones((2, 3), np.float32)


@pytest.mark.parametrize(
    ("optimizer", "change", "message"),
    [
        (ADAGRAD, {"gradients": np.array([[1, np.nan, 1]] * 2, np.float32)}, "gradients must be finite"),
        (ADAGRAD, {"gradients": np.array([[1, -np.inf, 1]] * 2, np.float32)}, "gradients must be finite"),
        (ADAGRAD, {"gradients": np.ones((2, 4), np.float32)}, r"holds 3-d float32 rows.*got float32 \(2, 4\)"),
        (ADAGRAD, {"gradients": np.ones((2, 3))}, "got float64"),
        (ADAGRAD, {"mode": "vectors"}, "mode must be one of .*'vectors'"),
        (ADAGRAD, {"state_deltas": _SIX}, "no state_deltas in mode gradients"),
        (ADAGRAD, {"mode": "deltas"}, "mode deltas needs state_deltas"),
        (ADAGRAD, {"mode": "deltas", "state_deltas": _SIX[:, :2]}, r"3 float32 values of state.*\(2, 2\)"),
        (ADAGRAD, {"mode": "deltas", "state_deltas": _SIX * np.nan}, "finite, not negative"),
        (ADAGRAD, {"mode": "deltas", "state_deltas": -_SIX}, "finite, not negative"),
        (ADAGRAD, {"mode": "deltas", "gradients": _SIX * np.nan, "state_deltas": _SIX}, "must be finite"),
        (ADAGRAD, {"mode": "deltas", "gradients": None, "state_deltas": _SIX}, "state_deltas without gradients"),
        (SGD, {"mode": "deltas", "state_deltas": _SIX}, "optimizer 'sgd' takes no state_deltas"),
        (ADAM, {"mode": "deltas"}, "'adam': mode deltas is refused, since moments are moving averages"),
        (ADAM, {"mode": "deltas", "gradients": None}, "'adam': mode deltas is refused"),
    ],
)
def test_a_bad_call_changes_nothing(store, optimizer, change, message):
    begin(store, DECAYING.model_copy(update={"optimizer": optimizer}))
    store.apply("t", flush_of([1], 0, 5, gradients=[[1, 1, 1]]))
    before = whole_state(store, "t")
    with pytest.raises(BadRequest, match=message):
        store.apply("t", _flush(**change))
    assert whole_state(store, "t") == before


def test_another_way_of_learning_is_another_declaration(store):
    begin(store, DECAYING)
    for change, message in (
        ({"regularization": LASSO}, r"regularization is .*elastic_net.*got .*'l1'"),
        ({"schedule": COSINE}, r"schedule is .*inverse_time.*got .*cosine"),
        ({"step_events": 11}, "step_events is 10, got 11"),
        ({"clip_norm": 1.0}, r"clip_norm is 0\.0, got 1\.0"),
        ({"optimizer": ADAM}, r"optimizer is .*'adagrad'.*got .*'adam'"),
    ):
        with pytest.raises(SpecConflict, match=message):
            store.create(DECAYING.model_copy(update=change))
    assert store.spec("t") == DECAYING


def test_statistics_of_evenly_spread_events_do_not_depend_on_the_split(store):
    """One event every 6, in calls of 6, 12 or 60 events: the same count, A and B. B's closed form assumes even spacing.

    Popularity has no such form: positives of one call all count as of its end, so that a call of n events blurs it by
    at most 2^(n/half-life).
    """
    spec = TableSpec(name="t", dim=1, shards=1, popularity_half_life=40)
    rows = []
    for size in (6, 12, 60):
        name = f"calls_of_{size}"
        begin(store, spec.model_copy(update={"name": name}))
        for lo in range(0, 240, size):
            store.apply(name, flush_of([1], lo, lo + size, counts=[size // 6]))
        rows.append(store.lookup(name, KEYS[1:2]))
    for got in rows[1:]:
        assert (got.count, got.last_seen) == (rows[0].count, rows[0].last_seen)
        assert got.gap == pytest.approx(rows[0].gap, rel=1e-6)
    for size, got in zip((6, 12, 60), rows, strict=True):
        exact = sum(2 ** (-(240 - at) / 40) for at in range(6, 241, 6))
        assert exact <= got.popularity[0] * (1 + 1e-6)
        assert got.popularity[0] <= exact * 2 ** (size / 40)


def test_gradients_and_idle_flushes_leave_statistics_alone(store):
    spec = TableSpec(name="t", dim=1, shards=1, popularity_half_life=40, optimizer=SGD)
    begin(store, spec)
    store.apply("t", flush_of([1], 0, 10, counts=[3]))
    before = store.lookup("t", KEYS[1:2])
    store.apply("t", flush_of([1], 10, 300, gradients=[[1.0]]))
    store.apply("t", flush_of([], 300, 301))
    after = store.lookup("t", KEYS[1:2])
    for name in ("count", "last_seen", "gap", "popularity"):
        assert getattr(before, name) == getattr(after, name)
    assert outcomes(store.apply("t", flush_of([1], 301, 302, counts=[1]))) == {"applied"}
    assert store.lookup("t", KEYS[1:2]).last_seen == [302]
