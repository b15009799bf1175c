"""Each step against NumPy in float64."""

import numpy as np
import pytest

from native import optimizers


def columns(n: int, dim: int):
    rng = np.random.default_rng(n * 100 + dim)
    vectors, gradients = rng.normal(size=(2, n, dim)).astype(np.float32)
    gradients.flags.writeable = False
    return vectors, rng.random((n, dim)).astype(np.float32), gradients


SHAPES = pytest.mark.parametrize(("n", "dim"), [(0, 4), (1, 1), (5, 7), (100, 64)])


@SHAPES
def test_add_and_sgd(n, dim):
    vectors, _, gradients = columns(n, dim)
    for step, rate in ((optimizers.add, None), (lambda w, g: optimizers.sgd(w, g, np.float32(0.05)), 0.05)):
        w = vectors.copy()
        step(w, gradients)
        want = vectors.astype(np.float64) + (gradients if rate is None else -rate * gradients.astype(np.float64))
        np.testing.assert_allclose(w, want, rtol=1e-5, atol=1e-6)


@SHAPES
def test_adagrad(n, dim):
    vectors, state, gradients = columns(n, dim)
    w, s = vectors.copy(), state.copy()
    optimizers.adagrad(w, s, gradients, np.float32(0.05), np.float32(1e-7))
    g = gradients.astype(np.float64)
    want = state.astype(np.float64) + g**2
    np.testing.assert_allclose(s, want, rtol=1e-6)
    np.testing.assert_allclose(w, vectors - 0.05 * g / (np.sqrt(want) + 1e-7), rtol=1e-4, atol=1e-6)


def test_adagrad_lets_nan_through_and_rests_on_zero():
    w, s = np.ones((2, 2), np.float32), np.zeros((2, 2), np.float32)
    optimizers.adagrad(w, s, np.array([[0, np.nan], [0, 0]], np.float32), np.float32(0.1), np.float32(1e-7))
    assert np.isnan(w[0, 1])
    assert np.isnan(s[0, 1])
    assert (w[1] == 1).all()
    assert w[0, 0] == 1
