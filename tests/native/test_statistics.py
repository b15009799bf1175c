"""Event-clock statistics against float64 NumPy."""

import numpy as np
import pytest

from native.rows import HEADER
from native.statistics import halved, observe, power


def test_halved_and_power_match_the_library():
    for x in [0.0, 1e-9, 0.3, 0.5, 1.0, 7.25, 100.9, 1021.5]:
        assert halved(x) == pytest.approx(2.0**-x, rel=4e-16 * 4)
    assert halved(1e9) == 0.0
    for base, exponent in [(0.95, 0), (0.95, 1), (0.95, 37), (0.0, 3), (0.999, 10**6)]:
        assert power(base, exponent) == pytest.approx(base**exponent, rel=1e-9)


def test_observe_against_numpy():
    rng = np.random.default_rng(0)
    n, clock, rate, half_life = 300, 5000, 0.05, 700.0
    h = np.zeros(n, HEADER)
    known = rng.random(n) < 0.7
    h["count"][known] = rng.integers(1, 9, known.sum())
    h["last_seen"][known] = rng.integers(1, 4000, known.sum())
    h["gap"][known] = rng.random(known.sum()) * 1000
    h["popularity"][known] = rng.random(known.sum()) * 50
    counts, positives = rng.integers(0, 4, n), rng.random(n).astype(np.float32)
    for column in (counts, positives):
        column.flags.writeable = False
    before = h.copy()
    observe(counts, positives, clock, rate, half_life, h["count"], h["last_seen"], h["gap"], h["popularity"])
    own = counts > 0
    assert (h[~own] == before[~own]).all()
    elapsed = (clock - before["last_seen"]).astype(float)
    with np.errstate(divide="ignore", invalid="ignore"):
        kept = (1 - rate) ** counts
        moved = kept * before["gap"] + (1 - kept) * elapsed / counts
        gap = np.where(before["count"] > 0, moved, clock / counts)
    np.testing.assert_allclose(h["gap"][own], gap[own], rtol=1e-6)
    np.testing.assert_allclose(
        h["popularity"][own], (before["popularity"] * 2 ** (-elapsed / half_life) + positives)[own], rtol=1e-6
    )
    np.testing.assert_array_equal(h["count"], before["count"] + counts)
    assert (h["last_seen"][own] == clock).all()


def test_c_events_at_once_are_like_c_events_spread_evenly():
    one, many = np.zeros(1, HEADER), np.zeros(1, HEADER)
    for h in (one, many):
        h["count"], h["last_seen"], h["gap"] = 1, 100, 30
    columns = ("count", "last_seen", "gap", "popularity")
    observe(np.array([4]), np.zeros(1, np.float32), 140, 0.1, 9.0, *(one[c] for c in columns))
    for t in (110, 120, 130, 140):
        observe(np.array([1]), np.zeros(1, np.float32), t, 0.1, 9.0, *(many[c] for c in columns))
    assert one["gap"][0] == pytest.approx(many["gap"][0], rel=1e-6)


def test_no_rows():
    observe(
        np.zeros(0, np.int64),
        np.zeros(0, np.float32),
        1,
        0.1,
        1.0,
        *(np.zeros(0, HEADER)[c] for c in ("count", "last_seen", "gap", "popularity")),
    )
