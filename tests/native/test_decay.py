"""The decay kernel against NumPy in float64."""

import numpy as np
import pytest

from native.decay import shrink


@pytest.mark.parametrize(("n", "dim"), [(0, 4), (1, 1), (5, 7), (300, 64)])
def test_shrink(n, dim):
    rng = np.random.default_rng(n + dim)
    w = rng.normal(size=(n, dim)).astype(np.float32)
    factors, thresholds = rng.random(n), rng.random(n) * (rng.random(n) < 0.7)
    for column in (w, factors, thresholds):
        column.flags.writeable = False
    out = np.empty_like(w)
    shrink(w, factors, thresholds, out)
    w64 = w.astype(np.float64)
    want = np.sign(w64) * np.maximum(0, np.abs(w64) * factors[:, None] - thresholds[:, None])
    np.testing.assert_array_equal(out, want.astype(np.float32))


def test_in_place_and_nan_is_seen():
    w = np.array([[1.0, np.nan, -3.0], [np.nan, np.inf, -1.0]], np.float32)
    shrink(w, np.array([0.5, 0.5]), np.array([0.25, 0.0]), w)
    np.testing.assert_array_equal(w, np.array([[0.25, np.nan, -1.25], [np.nan, np.inf, -0.5]], np.float32))
    shrink(w, np.array([1.0, 0.0]), np.array([9.0, 1.0]), w)
    assert (w[0, 0], w[0, 2], w[1, 2]) == (0, 0, 0)
    assert np.isnan(w[0, 1])
