"""Gradients of what transitions are worth, against differences of the loss in float64."""

from __future__ import annotations

import numpy as np

from native.transitions import transition_gradients


def loss(scores, mask, bias, own, evidence, worth, trust, weight):
    logits = np.where(mask, trust[:, None] * (scores + worth[:, None] * evidence) + bias, -np.inf)
    return weight * (np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(own)), own])


def test_gradients_are_those_of_the_formula():
    rng = np.random.default_rng(0)
    n, m, items = 5, 9, 12
    scores, bias = rng.normal(size=(n, m)).astype(np.float32), rng.normal(size=m).astype(np.float32)
    column, own = rng.integers(0, items, m), np.array([0, 3, 5, 8, 2])
    mask = rng.random((n, m)) < 0.7
    mask[np.arange(n), own] = True
    bounds = np.array([0, 3, 3, 7, 8, 10])  # the second has none
    numbers = np.array([0, 4, column[0], 1, column[5], 7, 9, 3, column[2], 11])
    values = rng.random(10).astype(np.float32) * 3
    worth, trust, weight = (rng.random(n).astype(np.float32) + 0.2 for _ in range(3))
    evidence = np.zeros((n, items))
    for i in range(n):
        evidence[i, numbers[bounds[i] : bounds[i + 1]]] = values[bounds[i] : bounds[i + 1]]
    evidence = evidence[:, column]
    scratch, out = np.zeros(items, np.float32), np.empty((2, n), np.float32)
    transition_gradients(
        scores, mask, bias, own, column, bounds[:-1], bounds[1:], numbers, values, worth, trust, weight, scratch, out
    )
    assert not scratch.any()
    fixed, h = (scores.astype(np.float64), mask, bias.astype(np.float64), own, evidence), 1e-5
    w, g, t = (x.astype(np.float64) for x in (weight, worth, trust))
    for_worth = (loss(*fixed, g + h, t, w) - loss(*fixed, g - h, t, w)) / (2 * h)
    for_trust = (loss(*fixed, g, t + h, w) - loss(*fixed, g, t - h, w)) / (2 * h)
    np.testing.assert_allclose(out, [for_worth, for_trust], atol=2e-5)
    assert out[0, 1] == 0
