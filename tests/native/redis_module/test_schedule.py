"""Rates, closed forms and shrinking in C give the bits of embedding_store/schedules.py and decay.py."""

import ctypes as c
import subprocess

import numpy as np
import pytest

from embedding_store import decay
from embedding_store.regularization import L1, L2, ElasticNet, NoRegularization
from embedding_store.schedules import EXACT_STEPS, MAX_STEPS, Constant, Cosine, InverseTime
from embedding_store.spec import Sgd, TableSpec
from native.decay import shrink
from native.redis_module.compiler import FOLDERS, build, build_library
from tests.native.redis_module.loaded import HERE, Allocator, Counting

KINDS = ("constant", "inverse_time", "cosine")
SOURCES = [FOLDERS[0] / "schedule.c", FOLDERS[0] / "elementary.c", HERE / "counting.c"]
SANITIZED = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g", "-O1")
FAR = 2**63 // 1000


class Schedule(c.Structure):
    _fields_ = (
        ("kind", c.c_int32), ("warmup_steps", c.c_int64), ("learning_rate", c.c_double), ("decay", c.c_double),
        ("steps", c.c_int64), ("floor", c.c_double),
    )  # fmt: skip


class Sums(c.Structure):
    _fields_ = (
        ("allocator", c.c_void_p), ("schedule", Schedule), ("l1", c.c_double), ("l2", c.c_double),
        *((name, c.c_int64) for name in ("varied", "length", "capacity")), ("sums", c.c_void_p),
    )  # fmt: skip


@pytest.fixture(scope="module")
def module(tmp_path_factory):
    library = c.CDLL(str(build_library(tmp_path_factory.mktemp("schedule") / "schedule.so", SOURCES, f"-I{HERE}")))
    library.schedule_rate.restype = c.c_double
    library.schedule_rate.argtypes = [c.c_void_p, c.c_int64]
    library.decay_open.argtypes = [c.c_void_p, c.c_void_p, c.c_double, c.c_double, c.c_void_p]
    library.decay_open.restype = library.decay_close.restype = None
    library.decay_close.argtypes = [c.c_void_p]
    library.decay_reach.restype = c.c_bool
    library.decay_reach.argtypes = [c.c_void_p, c.c_int64]
    library.decay_closed_form.argtypes = [c.c_void_p, c.c_int64, c.c_int64, c.c_void_p, c.c_void_p]
    library.decay_missed_open.argtypes = [c.c_void_p, c.c_void_p, c.c_int64]
    library.decay_missed_since.argtypes = [c.c_void_p, c.c_int64, c.c_void_p, c.c_void_p]
    library.decay_missed_open.restype = library.decay_missed_since.restype = None
    library.decay_shrink.argtypes = [c.c_void_p, c.c_uint32, c.c_double, c.c_double]
    return library


def schedule_of(spec):
    s = spec.schedule
    return Schedule(
        KINDS.index(s.kind), s.warmup_steps, spec.optimizer.learning_rate,
        *(getattr(s, name, 0) for name in ("decay", "steps", "floor")),
    )  # fmt: skip


class Missed(c.Structure):
    _fields_ = (("sums", c.c_void_p), ("stop", c.c_int64), ("starts", c.c_int64 * 256), ("kept", c.c_double * 512))


class Module:
    """decay_sums of a spec, with a counting allocator. Close it: that memory is given back is part of every test."""

    def __init__(self, library, spec):
        self.library, self.sums = library, Sums()
        self.allocator, self.counting = Allocator(), Counting()
        library.counting_open(c.byref(self.allocator), c.byref(self.counting))
        r, schedule = spec.regularization, schedule_of(spec)
        library.decay_open(
            c.byref(self.sums), c.byref(schedule), getattr(r, "l1", 0.0), getattr(r, "l2", 0.0), c.byref(self.allocator)
        )

    def closed_form(self, starts, stop):
        assert self.library.decay_reach(c.byref(self.sums), stop)
        out = np.empty((len(starts), 2))
        at, sums = out.ctypes.data, c.byref(self.sums)
        for i, start in enumerate(starts.tolist()):
            self.library.decay_closed_form(sums, start, stop, at + 16 * i, at + 16 * i + 8)
        self.check_missed(np.concatenate([starts, starts[::-1], starts]), stop, np.concatenate([out, out[::-1], out]))
        return out

    def check_missed(self, starts, stop, expected):
        """What is kept of it says the same, whatever was asked before."""
        missed, out = Missed(), np.empty((len(starts), 2))
        self.library.decay_missed_open(c.byref(missed), c.byref(self.sums), stop)
        at = out.ctypes.data
        for i, start in enumerate(starts.tolist()):
            self.library.decay_missed_since(c.byref(missed), start, at + 16 * i, at + 16 * i + 8)
        assert out.tobytes() == expected.tobytes()

    def close(self):
        self.library.decay_close(c.byref(self.sums))
        assert self.allocator.held == self.counting.held == 0


def spec_of(schedule, regularization, rate=0.05):
    return TableSpec(
        name="t", dim=1, optimizer=Sgd(learning_rate=rate), schedule=schedule, regularization=regularization
    )


def random_spec(rng):
    warmup = int(rng.choice([0, 1, 7, 3000, 70_000]))
    kind = rng.choice(KINDS)
    if kind == "inverse_time":
        schedule = InverseTime(warmup_steps=warmup, decay=float(10.0 ** rng.uniform(-6, 6)))
    elif kind == "cosine":
        steps = int(rng.choice([1, 2, 5000, 60_001]))
        schedule = Cosine(warmup_steps=warmup, steps=steps, floor=float(rng.choice([0.0, 0.01, rng.random(), 1.0])))
    else:
        schedule = Constant(warmup_steps=warmup)
    rate = float(10.0 ** rng.uniform(-4, 2))
    l1, l2 = float(10.0 ** rng.uniform(-6, 2)), float(min(0.999 / rate, 10.0 ** rng.uniform(-12, 2)))
    regularization = [L1(l1=l1), L2(l2=l2), ElasticNet(l1=l1, l2=l2)][rng.integers(3)]
    return TableSpec(
        name="t", dim=3, optimizer=Sgd(learning_rate=rate), schedule=schedule, regularization=regularization
    )


def ends_of(spec, rng):
    """Steps around the ends of the parts of a schedule, and far beyond."""
    s = spec.schedule
    ends = [0, s.warmup_steps, s.varied_steps, s.warmup_steps + getattr(s, "steps", 0), FAR]
    near = np.add.outer(ends, np.arange(-3, 4)).ravel()
    steps = np.concatenate([near, rng.integers(0, s.varied_steps + 10_000, 60), 2 ** rng.integers(0, 53, 20)])
    return np.unique(steps[(steps >= 0) & (steps <= FAR)])


def both(spec, starts, stop):
    """What Python says."""
    late = starts < stop
    factors, thresholds = np.ones(len(starts)), np.zeros(len(starts))
    factors[late], thresholds[late] = decay._closed_form(spec, starts[late], stop)
    return np.stack([factors, thresholds], axis=1)


@pytest.mark.parametrize("seed", range(40))
def test_rates_and_closed_forms(module, seed):
    rng = np.random.default_rng(seed)
    spec = random_spec(rng)
    steps = ends_of(spec, rng)
    schedule, theirs = schedule_of(spec), Module(module, spec)
    got = [module.schedule_rate(c.byref(schedule), step) for step in steps.tolist()]
    assert got == [decay.rate_at(spec, step * spec.step_events) for step in steps.tolist()]
    for stop in rng.choice(steps, 25).tolist():
        want = both(spec, steps, stop)
        np.testing.assert_array_equal(theirs.closed_form(steps, stop).view(np.uint64), want.view(np.uint64))
        assert want.min() >= 0
        assert want[:, 0].max() <= 1
    theirs.close()


@pytest.mark.parametrize(
    "regularization", [L2(l2=0.1), ElasticNet(l1=1e-3, l2=1e-9), L1(l1=0.01)], ids=lambda r: r.kind
)
def test_where_steps_drown_in_rounding_nothing_grows(module, regularization):
    """At 10¹⁵ steps of an inverse_time one step more is less than the sums can tell."""
    spec = spec_of(InverseTime(decay=0.37), regularization)
    theirs = Module(module, spec)
    for stop in (FAR, FAR - 1, FAR // 3):
        starts = stop - np.arange(1, 400)
        got = theirs.closed_form(starts, stop)
        np.testing.assert_array_equal(got.view(np.uint64), both(spec, starts, stop).view(np.uint64))
        assert got[:, 0].max() <= 1
        assert got[:, 1].min() >= 0
    theirs.close()


def test_memory_is_bounded_and_none_where_there_is_nothing_to_sum(module):
    longest = InverseTime(warmup_steps=MAX_STEPS, decay=1e-3)
    for schedule, varied in ((Constant(), 0), (Constant(warmup_steps=9), 9), (longest, MAX_STEPS + EXACT_STEPS)):
        spec = spec_of(schedule, ElasticNet(l1=1e-3, l2=1e-3))
        theirs = Module(module, spec)
        assert theirs.closed_form(np.array([FAR]), FAR).tolist() == [[1, 0]]
        assert theirs.counting.held == 8 * (varied + 1)
        theirs.close()
    theirs = Module(module, spec_of(longest, NoRegularization()))
    assert theirs.closed_form(np.array([0, 5]), FAR).tolist() == [[1, 0], [1, 0]]
    assert theirs.counting.taken == 0
    theirs.close()


def test_growth_is_amortized(module):
    spec = spec_of(InverseTime(decay=1e-3), L2(l2=0.1))
    theirs = Module(module, spec)
    for stop in range(0, 200_000, 7):
        assert module.decay_reach(c.byref(theirs.sums), stop)
    assert theirs.sums.length == stop
    assert theirs.counting.taken <= 9
    theirs.close()


def test_a_failed_growth_changes_nothing(module):
    spec = spec_of(InverseTime(decay=1e-3), L2(l2=0.1))
    theirs, starts = Module(module, spec), np.arange(1000)
    theirs.counting.left = 0
    assert not module.decay_reach(c.byref(theirs.sums), 1000)
    assert (theirs.sums.length, theirs.sums.sums, theirs.counting.held) == (0, None, 0)
    theirs.counting.left = -1
    before, held = theirs.closed_form(starts, 1000), theirs.counting.held
    theirs.counting.left = 0
    assert not module.decay_reach(c.byref(theirs.sums), 50_000)
    assert theirs.counting.held == held
    assert (theirs.closed_form(starts, 1000) == before).all()
    theirs.counting.left = -1
    np.testing.assert_array_equal(theirs.closed_form(starts, 50_000), both(spec, starts, 50_000))
    theirs.close()


@pytest.mark.parametrize("dim", [1, 3, 4, 7, 64, 129])
def test_shrinking(module, dim):
    rng = np.random.default_rng(dim)
    n = 300
    w = (rng.normal(size=(n, dim)) * 10.0 ** rng.integers(-44, 38, (n, 1))).astype(np.float32)
    w[::7] = rng.choice(np.array([0.0, -0.0, np.nan, np.inf, -np.inf, 1e-45, -1e-45], np.float32), w[::7].shape)
    factors = rng.choice([0.0, 1.0, 1e-300, 0.5, 1 - 2**-53], n) * rng.choice([1.0, rng.random()], n)
    thresholds = rng.choice([0.0, 1e-320, 1e-44, 0.3, 1e20], n)
    exact = np.flatnonzero(np.isfinite(w[:, 0]))[::3]
    thresholds[exact] = np.abs(w[exact, 0].astype(np.float64)) * factors[exact]  # as much as there is
    want, got = np.empty_like(w), w.copy()
    shrink(w, factors, thresholds, want)
    for i in range(n):
        module.decay_shrink(got[i].ctypes.data, dim, factors[i], thresholds[i])
    nan = np.isnan(want)
    np.testing.assert_array_equal(np.isnan(got), nan)
    np.testing.assert_array_equal(got.view(np.uint32)[~nan], want.view(np.uint32)[~nan])


def test_growth_under_the_sanitizers(tmp_path):
    sources = [*SOURCES, HERE / "decay_growth.c"]
    programs = [
        build(tmp_path / "plain", sources, f"-I{HERE}"),
        build(tmp_path / "sanitized", sources, f"-I{HERE}", *SANITIZED),
    ]
    ends = [
        subprocess.run([program, "5", "60"], capture_output=True, text=True, check=False, timeout=60)
        for program in programs
    ]
    for end in ends:
        assert (end.returncode, end.stderr) == (0, "")
    assert ends[0].stdout == ends[1].stdout
