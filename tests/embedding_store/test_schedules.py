"""Schedules and their sums, against plain sums in higher precision."""

import threading
from math import fsum, log1p

import numpy as np
import pytest
from pydantic import ValidationError

from embedding_store import schedules
from embedding_store.schedules import MAX_STEPS, Constant, Cosine, InverseTime, Sums
from embedding_store.spec import Sgd, TableSpec
from tests.eager import rate

SCHEDULES = [
    Constant(),
    Constant(warmup_steps=50),
    InverseTime(decay=0.1),
    InverseTime(decay=3.0, warmup_steps=7),
    Cosine(steps=400, floor=0.0),
    Cosine(steps=1, warmup_steps=3),
    Cosine(steps=5000, floor=0.2, warmup_steps=4096),
]
IDS = [f"{s.kind}-{s.warmup_steps}" for s in SCHEDULES]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=IDS)
def test_rates_are_the_formulas_and_never_above_the_base(schedule):
    spec = TableSpec(name="t", dim=1, optimizer=Sgd(learning_rate=0.3), schedule=schedule)
    steps = np.arange(12_000)
    factors = schedule.factors(steps)
    np.testing.assert_allclose(0.3 * factors, [rate(spec, step) for step in steps.tolist()], rtol=1e-12, atol=1e-15)
    assert factors.max() == 1
    assert factors.min() >= 0


@pytest.mark.parametrize("schedule", SCHEDULES, ids=IDS)
def test_sums_are_the_sums(schedule):
    rates = (0.3 * schedule.factors(np.arange(12_000))).tolist()
    sums = Sums(0.3, schedule, 0.7)
    starts = np.array([0, 1, 2, 7, 49, 50, 51, 399, 4095, 4096, 9000])
    for stop in (9000, 9001, 11_999):
        h = [fsum(rates[s:stop]) for s in starts.tolist()]
        el = [fsum(log1p(-r * 0.7) for r in rates[s:stop]) for s in starts.tolist()]
        np.testing.assert_allclose(sums.total_rate(starts, stop), h, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(sums.log_decay(starts, stop), el, rtol=1e-9, atol=1e-12)


def test_a_million_steps_and_the_tail_beyond(monkeypatch):
    """The integral takes over where sums stop being kept, without a seam."""
    monkeypatch.setattr(schedules, "EXACT_STEPS", 20_000)
    schedule = InverseTime(decay=0.01, warmup_steps=100)
    sums = Sums(0.5, schedule, 0.4)
    n = 1_500_000
    rates = 0.5 * schedule.factors(np.arange(n))
    prefix = np.concatenate([[0.0], np.cumsum(rates.astype(np.longdouble))])
    logs = np.concatenate([[0.0], np.cumsum(np.log1p(-0.4 * rates).astype(np.longdouble))])
    starts = np.array([0, 19_000, 20_099, 20_100, 20_101, 900_000, n - 1])
    np.testing.assert_allclose(sums.total_rate(starts, n), (prefix[n] - prefix[starts]).astype(float), rtol=1e-9)
    np.testing.assert_allclose(sums.log_decay(starts, n), (logs[n] - logs[starts]).astype(float), rtol=1e-9)
    assert len(sums._total_rate) == 20_101


@pytest.mark.parametrize("schedule", [Constant(warmup_steps=3), InverseTime(decay=1e-3), Cosine(steps=MAX_STEPS)])
def test_any_clock_is_answered_at_once_in_bounded_memory(schedule):
    sums = Sums(0.05, schedule, 0.1)
    far = 2**63 // 1000
    for start in (0, far - 5, far):
        assert np.isfinite(sums.log_decay(np.array([start]), far)).all()
        assert np.isfinite(sums.total_rate(np.array([start]), far)).all()
    assert sums.log_decay(np.array([far]), far)[0] == 0
    assert len(sums._total_rate) <= schedules.EXACT_STEPS + 1


def test_the_same_bits_however_it_grew():
    schedule = InverseTime(decay=0.02)
    stops = np.random.default_rng(0).integers(1, 60_000, 40)
    grown, whole = Sums(0.1, schedule, 0.5), Sums(0.1, schedule, 0.5)
    for stop in sorted(stops.tolist()):
        grown.log_decay(np.zeros(1, np.int64), stop)
    starts = np.arange(60_000)
    assert (grown.log_decay(starts, 60_000) == whole.log_decay(starts, 60_000)).all()


def test_threads_share_one_table():
    sums, faults = Sums(0.1, Constant(warmup_steps=100_000), 0.5), []
    want = Sums(0.1, Constant(warmup_steps=100_000), 0.5).log_decay(np.zeros(1, np.int64), 100_000)

    def ask(seed: int) -> None:
        for stop in np.random.default_rng(seed).integers(1, 100_000, 200).tolist():
            sums.log_decay(np.array([0, stop // 2]), stop)
        if (sums.log_decay(np.zeros(1, np.int64), 100_000) != want).any():
            faults.append(seed)

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not faults


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        (Constant, {"warmup_steps": -1}, "warmup_steps"),
        (InverseTime, {"decay": 0}, "decay"),
        (InverseTime, {"decay": float("nan")}, "decay"),
        (Cosine, {"steps": 0}, "steps"),
        (Cosine, {"steps": 5, "floor": 1.5}, "floor"),
    ],
)
def test_a_schedule_that_is_none_is_refused(kind, values, message):
    with pytest.raises(ValidationError, match=message):
        kind(**values)
