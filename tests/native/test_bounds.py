"""Bounds see every value, NaN and infinity included."""

from __future__ import annotations

import numpy as np
import pytest

from native.bounds import longest, within


@pytest.mark.parametrize("shape", [(0,), (1,), (33,), (5, 64), (0, 8)])
def test_values_inside_and_one_outside(shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(1).uniform(-2, 2, shape).astype(np.float32)
    assert within(values, 2.0)
    assert within(np.asfortranarray(values), 2.0)
    for bad in (np.nan, np.inf, -np.inf, 2.0001, -2.0001):
        for place in {0, values.size // 2, values.size - 1} if values.size else ():
            worse = values.copy()
            worse.reshape(-1)[place] = bad
            assert not within(worse, 2.0)


def test_the_bound_itself_is_inside_and_read_only_arrays_are_read() -> None:
    values = np.array([2.0, -2.0], np.float32)
    values.flags.writeable = False
    assert within(values, 2.0)
    assert within(np.array([1e15], np.float32), 1e15)


def test_the_longest_row_is_of_its_first_columns() -> None:
    rows = np.array([[3, 4, 100], [0, -6, 0]], np.float32)
    assert longest(rows, 2) == 36
    assert longest(rows, 3) == 10_025
    assert longest(rows[:0], 2) == 0
