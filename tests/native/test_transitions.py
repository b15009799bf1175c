"""Nearness and shares against slow counts, and gradients of what transitions are worth against differences."""

from __future__ import annotations

import numpy as np

from embedding_store.contract import ENTRY
from native.transitions import followers, nearness, transition_gradients


def loss(scores, mask, bias, own, evidence, worth, trust, weight):
    boosted = scores + (worth[:, :, None] * evidence).sum(axis=0)
    logits = np.where(mask, trust[:, None] * boosted + bias, -np.inf)
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
    values = rng.random((2, 10)).astype(np.float32) * 3
    worth = rng.random((2, n)).astype(np.float32) + np.float32(0.2)
    trust, weight = (rng.random(n).astype(np.float32) + 0.2 for _ in range(2))
    evidence = np.zeros((2, n, items))
    for i in range(n):
        evidence[:, i, numbers[bounds[i] : bounds[i + 1]]] = values[:, bounds[i] : bounds[i + 1]]
    evidence = evidence[:, :, column]
    scratch, out = np.zeros((2, items), np.float32), np.empty((3, n), np.float32)
    transition_gradients(
        scores, mask, bias, own, column, bounds[:-1], bounds[1:], numbers, values, worth, trust, weight, scratch, out
    )
    assert not scratch.any()
    fixed, h = (scores.astype(np.float64), mask, bias.astype(np.float64), own, evidence), 1e-5
    w, g, t = (x.astype(np.float64) for x in (weight, worth, trust))
    expected = []
    for v in (0, 1):
        step = h * (np.arange(2) == v)[:, None]
        expected.append((loss(*fixed, g + step, t, w) - loss(*fixed, g - step, t, w)) / (2 * h))
    expected.append((loss(*fixed, g, t + h, w) - loss(*fixed, g, t - h, w)) / (2 * h))
    np.testing.assert_allclose(out, expected, atol=2e-5)
    assert not out[:2, 1].any()


def test_an_item_counts_by_its_place_and_age_and_once():
    items = np.array([[7, 8, 7, 9, 10], [1, 2, 3, 4, 5], [1, 2, 3, 4, 5]], np.uint64)
    times = 10**6 - np.array([[0, 100, 200, 300, 2000], [5, 5, 5, 5, 5], [0, 1, 2, 3, 4]])
    out = np.full((3, 5), 9.0, np.float32)
    nearness(items, np.array([5, 3, 0]), times, 0.5, 100.0, 0.01, out)
    expected = [[1, 0.5 / 2, 0, 0.125 / 10, 0], [1, 0.5, 0.25, 0, 0], [0, 0, 0, 0, 0]]
    np.testing.assert_allclose(out, expected, rtol=1e-6)
    assert out[0, 0] == 1


def test_followers_are_shares_of_what_is_kept():
    rng = np.random.default_rng(3)
    lengths = np.array([0, 1, 40, 200, 7, 3])
    bounds = np.concatenate([[0], np.cumsum(lengths)])
    entries = np.zeros(bounds[-1], ENTRY)
    entries["item"] = rng.integers(0, 30, len(entries)).astype(np.uint64) * np.uint64(2**59 + 1)
    entries["weight"] = np.where(rng.random(len(entries)) < 0.4, 1, rng.random(len(entries)) * 0.9)
    entries["weight"][bounds[4] : bounds[5]] = 0.5  # nothing came directly after
    rows = np.array([[3, 2, -1], [-1, -1, -1], [0, 0, 1], [4, 3, 2], [1, -1, 5]])
    near = rng.random(rows.shape).astype(np.float32)
    most = int(np.where(rows >= 0, lengths[rows], 0).sum())
    offsets, keys = np.zeros(len(rows) + 1, np.int64), np.empty(most, np.uint64)
    direct, share = np.empty(most, np.float32), np.empty(most, np.float32)
    n = followers(bounds, entries, rows, near, offsets, keys, direct, share)
    assert (n, offsets[0]) == (offsets[-1], 0)
    for i, row in enumerate(rows):
        expected: dict[int, list[float]] = {}
        for k, j in enumerate(row):
            part = entries[bounds[j] : bounds[j + 1]] if j >= 0 else entries[:0]
            first = part["weight"] == 1
            for e in part:
                found = expected.setdefault(int(e["item"]), [0.0, 0.0])
                found[0] += float(k == 0 and e["weight"] == 1) / max(1, first.sum())
                found[1] += float(near[i, k]) * float(e["weight"]) / part["weight"].sum(dtype=float)
        mine = slice(offsets[i], offsets[i + 1])
        assert sorted(keys[mine].tolist()) == sorted(expected)
        for key, one, other in zip(keys[mine].tolist(), direct[mine], share[mine], strict=True):
            np.testing.assert_allclose([one, other], expected[key], rtol=1e-5, atol=1e-6)
