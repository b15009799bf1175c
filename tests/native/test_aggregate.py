"""Sums by key against a float64 dictionary."""

from itertools import pairwise

import numpy as np
import pytest

from native.aggregate import aggregate, aggregate_parts, moved_rows


def oracle(keys, gradients):
    sums = {}
    for key, gradient in zip(keys.tolist(), gradients.astype(np.float64), strict=True):
        sums[key] = sums.get(key, 0.0) + gradient
    return sums


@pytest.mark.parametrize("dim", [1, 3, 7, 64])
@pytest.mark.parametrize(("n", "distinct"), [(0, 1), (1, 1), (9, 1), (500, 13), (500, 10**9), (3000, 700)])
def test_sums_are_those_of_the_oracle(n, distinct, dim):
    rng = np.random.default_rng(n + dim)
    keys = rng.integers(0, distinct, n).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    gradients = rng.normal(size=(n, dim)).astype(np.float32)
    for column in (keys, gradients):
        column.flags.writeable = False
    got, sums = aggregate(keys, gradients)
    want = oracle(keys, gradients)
    assert got.tolist() == list(want)  # by first appearance
    assert (sums.shape, sums.dtype) == ((len(want), dim), np.float32)
    if n:
        np.testing.assert_allclose(sums, np.array(list(want.values())), rtol=1e-5, atol=1e-5)


def test_parts_are_one_batch():
    rng = np.random.default_rng(0)
    keys = rng.integers(0, 50, 300).astype(np.uint64)
    gradients = rng.normal(size=(300, 5)).astype(np.float32)
    whole = aggregate(keys, gradients)
    for cuts in ([0, 300], [0, 1, 1, 299, 300], [0, 100, 200, 300]):
        parts = [(keys[a:b], gradients[a:b]) for a, b in pairwise(cuts)]
        split = aggregate_parts(np.zeros(0, np.uint64), parts, 5)
        np.testing.assert_array_equal(split[0], whole[0])
        np.testing.assert_array_equal(split[1], whole[1])


def test_the_first_keys_are_numbered_first_and_may_have_no_gradient():
    first = np.array([7, 2**64 - 1, 7, 0], np.uint64)
    keys, sums = aggregate_parts(first, [(np.array([5, 0, 5], np.uint64), np.ones((3, 2), np.float32))], 2)
    assert keys.tolist() == [7, 2**64 - 1, 0, 5]
    assert sums.tolist() == [[0, 0], [0, 0], [1, 1], [2, 2]]
    keys, sums = aggregate_parts(first[:0], [], 2)
    assert (keys.shape, sums.shape) == ((0,), (0, 2))


def test_strided_columns_and_not_finite_values():
    wide = np.arange(12, dtype=np.float32).reshape(2, 6)[:, ::2]
    wide[1, 1] = np.nan
    keys, sums = aggregate(np.array([3, 0, 3, 0], np.uint64)[::2], wide)
    assert keys.tolist() == [3]
    np.testing.assert_array_equal(sums, [[6, np.nan, 14]])


def test_gradients_of_another_width_are_refused():
    with pytest.raises(ValueError, match=r"2 keys need gradients \(2, 4\), got \(2, 3\)"):
        aggregate_parts(np.zeros(0, np.uint64), [(np.zeros(2, np.uint64), np.zeros((2, 3), np.float32))], 4)


def test_rows_that_moved_are_told_from_those_of_zeros() -> None:
    rows = np.zeros((5, 3), np.float32)
    rows[1, 2], rows[3, 0], rows[4, 1] = 1.0, np.nan, -0.0
    out = np.ones(5, bool)
    moved_rows(rows, 1, out)
    assert out.tolist() == [True, True, False, True, False]
