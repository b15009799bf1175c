"""Closed forms against eager decay of whole tables: every optimizer × regularizer × schedule, on the kernels."""

import itertools

import numpy as np
import pytest

from embedding_store.decay import decay, missed, rate_at
from embedding_store.memory import MemoryStore
from embedding_store.regularization import L1, L2, ElasticNet, NoRegularization
from embedding_store.schedules import Constant, Cosine, InverseTime
from embedding_store.spec import Adagrad, Adam, RowwiseAdagrad, Sgd, TableSpec
from tests.eager import EagerTable, decayed, rate
from tests.flushes import begin, flush_of

OPTIMIZERS = [
    Sgd(learning_rate=0.2),
    Adagrad(learning_rate=0.2),
    RowwiseAdagrad(learning_rate=0.2),
    Adam(learning_rate=0.1),
]
REGULARIZERS = [
    NoRegularization(), L2(l2=0.3), L2(l2=1e-6), L1(l1=0.01), ElasticNet(l1=0.01, l2=0.2), ElasticNet(l1=0.01, l2=1e-9)
]  # fmt: skip
SCHEDULES = [
    Constant(),
    Constant(warmup_steps=6),
    InverseTime(decay=0.5),
    InverseTime(decay=0.1, warmup_steps=4),
    Cosine(steps=12, floor=0.0),
    Cosine(steps=9, floor=0.1, warmup_steps=5),
]
ALL_FOUND = np.ones(1, np.bool_)


def name(value: object) -> str:
    return "-".join(str(v) for v in value.model_dump().values())  # type: ignore[attr-defined]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=name)
@pytest.mark.parametrize("regularization", REGULARIZERS, ids=name)
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: o.kind)
def test_lazy_is_eager(optimizer, regularization, schedule):
    spec = TableSpec(
        name="t", dim=5, shards=1, optimizer=optimizer, regularization=regularization, schedule=schedule,
        step_events=7, initial_std=0.2, seed=3,
    )  # fmt: skip
    store, rng = MemoryStore(), np.random.default_rng(1)
    begin(store, spec)
    keys = list(range(12))
    initial = dict(enumerate(store.lookup("t", np.array(keys, np.uint64)).vectors))
    eager = EagerTable(spec, initial.__getitem__)
    for at in range(40):
        events = int(rng.integers(1, 16))
        chosen = sorted(rng.choice(12, int(rng.integers(0, 4)), replace=False).tolist())
        g = rng.normal(size=(len(chosen), 5)).astype(np.float32)
        store.apply("t", flush_of(chosen, at, at + 1, gradients=g, events=events))
        eager.apply(events, dict(zip(chosen, g, strict=True)))
        rows = store.lookup("t", np.array(keys, np.uint64), with_state=True)
        np.testing.assert_allclose(rows.vectors, eager.vectors(keys), rtol=2e-5, atol=2e-6)
    stored = sorted(eager.rows)
    np.testing.assert_allclose(rows.state[stored], eager.states(stored), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("regularization", REGULARIZERS[1:], ids=name)
@pytest.mark.parametrize("schedule", SCHEDULES, ids=name)
def test_closed_forms_compose(regularization, schedule):
    """Decayed to c and then to d is decayed to d: in float64, before any rounding."""
    spec = TableSpec(name="t", dim=1, optimizer=Sgd(), regularization=regularization, schedule=schedule, step_events=10)
    for s, c, d in itertools.combinations([0, 9, 10, 55, 1000, 54_321], 3):
        w = 0.8
        for a, b in ((s, c), (c, d)):
            both = missed(spec, np.array([a]), b, ALL_FOUND)
            if both is not None:
                w = max(0.0, w * both[0][0] - both[1][0])
        both = missed(spec, np.array([s]), d, ALL_FOUND)
        want = 0.8 if both is None else max(0.0, 0.8 * both[0][0] - both[1][0])
        assert w == pytest.approx(want, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("regularization", REGULARIZERS[1:], ids=name)
def test_thousands_of_missed_steps_neither_underflow_nor_drift(regularization):
    spec = TableSpec(
        name="t", dim=1, optimizer=Sgd(learning_rate=0.02), regularization=regularization,
        schedule=InverseTime(decay=0.01), step_events=1,
    )  # fmt: skip
    n = 20_000
    want = np.array([50.0])
    for step in range(n):
        want = decayed(spec, want, step)
    w = np.array([[50.0]], np.float32)
    decay(spec, w, np.zeros(1, np.int64), n, ALL_FOUND)
    np.testing.assert_allclose(w[0], want, rtol=1e-6, atol=1e-9)
    late = np.array([[50.0]], np.float32)  # after so many steps that P itself is long 0
    decay(spec, late, np.array([10 * n]), 10 * n + 1, ALL_FOUND)
    np.testing.assert_allclose(late[0], decayed(spec, np.array([50.0]), 10 * n), rtol=1e-6)


def test_products_that_underflow_are_never_formed():
    spec = TableSpec(
        name="t", dim=1, optimizer=Sgd(learning_rate=0.5), step_events=1, regularization=ElasticNet(l1=0.1, l2=1.9)
    )
    w = np.array([[3.0], [3.0]], np.float32)
    decay(spec, w, np.array([0, 999_998]), 1_000_000, np.ones(2, np.bool_))
    want = np.array([3.0])
    for step in (0, 1):
        want = decayed(spec, want, step)
    np.testing.assert_allclose(w[1], want, rtol=1e-6, atol=1e-9)
    assert w[0, 0] == 0


def test_global_weight_decay_is_the_wrong_answer():
    """FBGEMM decays all missed steps with the current rate: under η_τ = 1/τ it keeps .678 where .473 is right.

    A row is updated at step 41 and next at step 184; λ2 = .5.
    """
    spec = TableSpec(
        name="t", dim=1, optimizer=Sgd(learning_rate=1.0), schedule=InverseTime(decay=1.0), step_events=1,
        regularization=L2(l2=0.5),
    )  # fmt: skip
    w = np.ones((1, 1), np.float32)
    decay(spec, w, np.array([41]), 184, ALL_FOUND)
    assert w[0, 0] == pytest.approx(0.473, abs=5e-4)
    exact = np.prod([1 - 0.5 * rate(spec, step) for step in range(41, 184)])
    assert w[0, 0] == pytest.approx(exact, rel=1e-6)
    wrong = (1 - 0.5 * rate(spec, 183)) ** (184 - 41)
    assert wrong == pytest.approx(0.678, abs=5e-4)


def test_sgd_is_the_exact_formula():
    """w·exp(L) per row, and sgn(w)·max(0, |w| − λ1·H): the numbers of LEARNING, step by step."""
    lr, lam = 0.1, 0.5
    spec = TableSpec(
        name="t", dim=2, shards=1, optimizer=Sgd(learning_rate=lr), regularization=L2(l2=lam), step_events=10
    )
    store = MemoryStore()
    begin(store, spec)
    store.apply("t", flush_of([1], 0, 10, gradients=[[-10.0, 10.0]]))  # w = (1, −1) at clock 10, step 1
    store.apply("t", flush_of([2], 10, 39, gradients=[[1.0, 1.0]]))  # clock 39: steps 1 and 2 are over
    w = store.lookup("t", np.array([1], np.uint64)).vectors[0]
    np.testing.assert_allclose(w, [0.95**2, -(0.95**2)], rtol=1e-6)
    store.apply("t", flush_of([1], 39, 41, gradients=[[1.0, 0.0]]))  # clock 41: step 3 is over too, then the gradient
    w = store.lookup("t", np.array([1], np.uint64)).vectors[0]
    np.testing.assert_allclose(w, [0.95**3 - lr, -(0.95**3)], rtol=1e-6)


def test_coupled_l2_under_sgd_is_decoupled():
    """w − η(g + λw) at every step is what the table holds that says `coupled`."""
    spec = TableSpec(
        name="t", dim=1, shards=1, optimizer=Sgd(learning_rate=0.1), step_events=1,
        regularization=L2(l2=0.5, coupled=True),
    )  # fmt: skip
    store, w, rng = MemoryStore(), 0.0, np.random.default_rng(5)
    begin(store, spec)
    for i in range(30):
        g = float(rng.normal()) if i == 0 or rng.random() < 0.3 else 0.0
        w = w - 0.1 * (g + 0.5 * w)
        gradients = [[g]] if g else np.zeros((0, 1))
        store.apply("t", flush_of([1] if g else [], i, i + 1, gradients=gradients))
        assert store.lookup("t", np.array([1], np.uint64)).vectors[0, 0] == pytest.approx(w, rel=1e-5)


def test_a_row_newer_than_the_clock_and_one_not_there_have_missed_nothing():
    spec = TableSpec(name="t", dim=1, optimizer=Sgd(), regularization=L2(l2=1.0), step_events=1)
    assert missed(spec, np.array([50, 0]), 20, np.array([True, False])) is None
    factors, _ = missed(spec, np.array([50, 0, 10]), np.array([20, 20, 11]), np.array([True, False, True]))
    np.testing.assert_allclose(factors, [1, 1, 0.95])


def test_the_rate_is_that_of_the_step_in_which_the_call_ends():
    spec = TableSpec(
        name="t", dim=1, optimizer=Sgd(learning_rate=0.6), schedule=Constant(warmup_steps=3), step_events=9
    )
    assert [round(rate_at(spec, clock), 9) for clock in (0, 8, 9, 17, 18, 10**9)] == [0.2, 0.2, 0.4, 0.4, 0.6, 0.6]
