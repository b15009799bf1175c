"""The softmax between its products against the formula in float64; with them it is tested as the trainer's step."""

import numpy as np
import pytest

from native.softmax import exp_all_below, losses_among, push


def case(seed, groups, group):
    rng = np.random.default_rng(seed)
    n = groups * group
    logits = rng.normal(0, 3, (n, group)).astype(np.float32)
    mask = rng.random((n, group)) < 0.7
    mask[np.arange(n), np.arange(n) % group] = True
    prior, popularity, bias = rng.normal(size=(3, n)).astype(np.float32)
    weight = rng.uniform(0.2, 2, n).astype(np.float32)
    weight[::4] = 0.0
    for array in (mask, prior, weight, popularity, bias):
        array.flags.writeable = False
    return logits, mask, prior, popularity, bias, weight


def run(logits, mask, prior, popularity, bias, weight, smoothing):
    d_prior = np.full(len(logits), 7.0, np.float32)
    group = logits.shape[1]
    by_group = [x.reshape(-1, group) for x in (prior, popularity, bias, weight)]
    by_group[:0] = [logits.reshape(-1, group, group), mask.reshape(-1, group, group)]
    loss = push(*by_group, 0, smoothing, d_prior.reshape(-1, group))
    return loss, logits, d_prior


@pytest.mark.parametrize(("groups", "group"), [(1, 1), (1, 7), (3, 13), (2, 33), (0, 4)])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_loss_and_gradients_are_those_of_the_formula(groups, group, smoothing):
    logits, mask, prior, popularity, bias, weight = case(group, groups, group)
    want, gradient, d_want = 0.0, np.zeros(logits.shape), np.zeros(len(logits))
    for i, products in enumerate(logits.astype(np.float64)):
        own, columns = i % group, slice(i // group * group, i // group * group + group)
        full = products + float(prior[i]) * popularity[columns] + bias[columns]
        on = np.flatnonzero(mask[i])
        log_p = full[on] - np.logaddexp.reduce(full[on])
        target = np.full(len(on), smoothing / len(on)) + (1 - smoothing) * (on == own)
        want -= weight[i] * target @ log_p
        gradient[i, on] = weight[i] * (np.exp(log_p) - target)
        d_want[i] = gradient[i] @ popularity[columns]
    loss, pushes, d_prior = run(logits, mask, prior, popularity, bias, weight, smoothing)
    assert loss == pytest.approx(want, rel=1e-5)
    np.testing.assert_allclose(pushes, gradient, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(d_prior, d_want, rtol=1e-4, atol=1e-5)
    assert not pushes[~mask].any(), "exact zeros"


@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf])
@pytest.mark.parametrize("column", [1, 3])
def test_what_is_not_finite_shows(bad, column):
    logits, *columns = case(3, 1, 5)
    columns[0] = np.ones((5, 5), bool)
    logits[1, column] = bad
    loss, pushes, _ = run(logits, *columns, 0.1)
    assert not np.isfinite(loss)
    assert not np.isfinite(pushes[1]).all()
    assert np.isfinite(pushes[[0, 2, 3, 4]]).all()


def test_huge_logits_neither_overflow_nor_vanish():
    mask, one = np.ones((2, 2), bool), np.ones(2, np.float32)
    logits = np.array([[3e4, -3e4], [5.0, 5.0]], np.float32)
    loss, pushes, _ = run(logits, mask, 0 * one, one, 0 * one, one, 0.0)
    assert loss == pytest.approx(np.log(2))
    np.testing.assert_allclose(pushes, [[0, 0], [0.5, -0.5]], atol=1e-6)


def test_exponentials_are_within_two_units_in_the_last_place():
    x = np.linspace(-90, 0, 400_001).astype(np.float32)
    found, want = x.copy(), np.exp(x.astype(np.float64))
    exp_all_below(found)
    above = x >= -87
    unit = np.spacing(want[above].astype(np.float32)).astype(np.float64)
    assert (np.abs(found[above] - want[above]) / unit).max() < 2.0
    assert not found[~above].any()
    assert found[-1] == 1.0
    odd = np.array([-np.inf, -1e30, -np.nan, np.nan], np.float32)
    exp_all_below(odd)
    np.testing.assert_array_equal(odd, np.array([0, 0, np.nan, np.nan], np.float32))


@pytest.mark.parametrize(("n", "m"), [(0, 3), (1, 1), (9, 5), (40, 33)])
def test_losses_among_others_are_those_of_the_formula(n, m):
    rng = np.random.default_rng(n)
    own, others = rng.normal(0, 4, n).astype(np.float32), rng.normal(0, 4, (n, m)).astype(np.float32)
    others[:, 0] = -np.inf
    target, columns = rng.integers(0, 6, n), rng.integers(0, 6, m)
    for array in (own, others, target, columns):
        array.flags.writeable = False
    out = np.full(n, 7.0)
    losses_among(own, others, target, columns, out)
    for i in range(n):
        there = others[i, (columns != target[i]) & np.isfinite(others[i])].astype(np.float64)
        want = np.logaddexp.reduce([*there, own[i]]) - own[i] - np.log1p(len(there))
        assert out[i] == pytest.approx(want, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("where", ["own", "others"])
def test_a_loss_of_what_is_not_finite_is_not(bad, where):
    own, others, out = np.zeros(2, np.float32), np.zeros((2, 3), np.float32), np.zeros(2)
    {"own": own, "others": others[:, 1]}[where][0] = bad
    losses_among(own, others, np.array([9, 9]), np.arange(3), out)
    assert not np.isfinite(out[0])
    assert out[1] == pytest.approx(0.0, abs=1e-6)
