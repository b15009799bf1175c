"""The parts of the softmax against the formula in float64; together they are tested as the trainer's step."""

import numpy as np
import pytest

from native.softmax import complete, lower, push


def case(seed, rows, columns):
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 3, (rows, columns)).astype(np.float32)
    mask = rng.random((rows, columns)) < 0.7
    mask[np.arange(rows), np.arange(rows)] = True
    prior, weight = rng.normal(size=rows).astype(np.float32), rng.uniform(0.2, 2, rows).astype(np.float32)
    weight[::4] = 0.0
    popularity, bias = rng.normal(size=(2, columns)).astype(np.float32)
    for array in (mask, prior, weight, popularity, bias):
        array.flags.writeable = False
    return logits, mask, prior, popularity, bias, weight


def run(logits, mask, prior, popularity, bias, weight, smoothing):
    rows = len(logits)
    own, sums, counts, d_prior = (np.full(rows, 7.0, np.float32) for _ in range(4))
    complete(logits, prior, popularity, bias, mask)
    lower(logits, logits.max(axis=1), mask, own, sums, counts)
    np.exp(logits, out=logits)
    return push(logits, mask, popularity, weight, smoothing, own, sums, counts, d_prior), logits, d_prior


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (7, 7), (13, 33)])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_loss_and_gradients_are_those_of_the_formula(rows, columns, smoothing):
    logits, mask, prior, popularity, bias, weight = case(rows, rows, columns)
    full = logits.astype(np.float64) + np.outer(prior, popularity) + bias
    loss, pushes, d_prior = run(logits, mask, prior, popularity, bias, weight, smoothing)
    want, gradient = 0.0, np.zeros_like(full)
    for i in range(rows):
        on = np.flatnonzero(mask[i])
        log_p = full[i, on] - np.logaddexp.reduce(full[i, on])
        target = np.full(len(on), smoothing / len(on)) + (1 - smoothing) * (on == i)
        want -= weight[i] * target @ log_p
        gradient[i, on] = weight[i] * (np.exp(log_p) - target)
    assert loss == pytest.approx(want, rel=1e-5)
    np.testing.assert_allclose(pushes, gradient, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(d_prior, gradient @ popularity, rtol=1e-4, atol=1e-5)
    assert not pushes[~mask].any(), "exact zeros"


def test_what_is_not_finite_shows():
    logits, *columns = case(3, 5, 5)
    logits[1, 1] = np.nan
    loss, pushes, _ = run(logits, *columns, 0.1)
    assert not np.isfinite(loss)
    assert not np.isfinite(pushes[1]).any()
    assert np.isfinite(pushes[[0, 2, 3, 4]]).all()


def test_huge_logits_neither_overflow_nor_vanish():
    mask, one = np.ones((2, 2), bool), np.ones(2, np.float32)
    logits = np.array([[3e4, -3e4], [5.0, 5.0]], np.float32)
    loss, pushes, _ = run(logits, mask, 0 * one, one, 0 * one, one, 0.0)
    assert loss == pytest.approx(np.log(2))
    np.testing.assert_allclose(pushes, [[0, 0], [0.5, -0.5]], atol=1e-6)
