"""Pooling against NumPy in float64, and its gradient against finite differences."""

import numpy as np
import pytest

from native.pooling import add_rows, pool_gradients, pool_histories

SHAPES = [(0, 0, 3, 5), (1, 0, 3, 1), (0, 4, 3, 2), (9, 6, 1, 1), (5, 40, 7, 3), (30, 25, 20, 33)]


def case(u, batch, length, dim):
    rng = np.random.default_rng(u + 10 * batch)
    vectors = rng.normal(size=(u, dim)).astype(np.float32)
    slots = rng.integers(-1, u, (batch, length)) if u else np.full((batch, length), -1, np.int64)
    if u and batch > 2:
        slots[0] = -1  # nobody there
        slots[1] = 0  # one item, again and again
        slots[2, :-1] = -1  # only the oldest is left
    for array in (vectors, slots):
        array.flags.writeable = False
    return vectors, slots


def weights(slots, recency):
    w = np.float64(recency) ** np.arange(slots.shape[1]) * (slots >= 0)
    total = w.sum(axis=1, keepdims=True)
    return np.divide(w, total, out=np.zeros_like(w), where=total > 0)


def oracle(vectors, slots, recency):
    rows = vectors.astype(np.float64)[slots] if len(vectors) else np.zeros((*slots.shape, vectors.shape[1]))
    return np.einsum("bk,bkj->bj", weights(slots, recency), rows)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("recency", [1.0, 0.8, 0.01])
def test_pooling_is_the_weighted_mean(shape, recency):
    vectors, slots = case(*shape)
    out = np.full((len(slots), vectors.shape[1]), 7.0, np.float32)  # what was there does not matter
    pool_histories(vectors, slots, recency, out)
    np.testing.assert_allclose(out, oracle(vectors, slots, recency), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_gradient_is_the_transpose(shape):
    vectors, slots = case(*shape)
    upstream = np.random.default_rng(1).normal(size=(len(slots), vectors.shape[1])).astype(np.float32)
    upstream.flags.writeable = False
    start = np.full(vectors.shape, 0.5, np.float32)
    out = start.copy()
    pool_gradients(upstream, slots, 0.7, out)
    want = start.astype(np.float64)
    w = weights(slots, 0.7)
    for b, k in np.argwhere(slots >= 0):
        want[slots[b, k]] += w[b, k] * upstream[b]
    np.testing.assert_allclose(out, want, rtol=1e-5, atol=1e-5)


def test_the_gradient_is_that_of_finite_differences():
    vectors, slots = case(5, 40, 7, 3)
    upstream = np.random.default_rng(2).normal(size=(40, 3)).astype(np.float32)
    got = np.zeros((5, 3), np.float32)
    pool_gradients(upstream, slots, 0.7, got)
    for i, j in np.ndindex(5, 3):
        step = np.zeros((5, 3))
        step[i, j] = 1e-3
        high, low = oracle(vectors + step, slots, 0.7), oracle(vectors - step, slots, 0.7)
        assert got[i, j] == pytest.approx(((high - low) * upstream).sum() / 2e-3, abs=1e-4)


@pytest.mark.parametrize(("n", "u", "dim"), [(0, 3, 2), (5, 1, 1), (60, 4, 7)])
def test_add_rows_is_add_at(n, u, dim):
    rng = np.random.default_rng(n)
    values, rows = rng.normal(size=(n, dim)).astype(np.float32), rng.integers(-2, u, n)
    out = rng.normal(size=(u, dim)).astype(np.float32)
    want = out.astype(np.float64)
    np.add.at(want, rows[rows >= 0], values[rows >= 0])
    for array in (values, rows):
        array.flags.writeable = False
    add_rows(values, rows, out)
    np.testing.assert_allclose(out, want, rtol=1e-5, atol=1e-5)
