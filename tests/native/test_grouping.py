"""A counting sort against NumPy's stable sort."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from native.grouping import grouped, in_order


@pytest.mark.parametrize(("n", "groups"), [(0, 0), (0, 3), (1, 1), (200, 7), (7, 200), (1000, 1)])
def test_grouped_is_a_stable_sort(n: int, groups: int) -> None:
    numbers = np.random.default_rng(n + groups).integers(0, max(1, groups), n)
    order, bounds = grouped(numbers, groups)
    assert order.tolist() == np.argsort(numbers, kind="stable").tolist()
    assert bounds.tolist() == np.searchsorted(np.sort(numbers), np.arange(groups + 1)).tolist()


def test_order_is_by_time_then_partition_then_place_within_each_group() -> None:
    rng = np.random.default_rng(3)
    fell = []
    for _ in range(300):
        n = int(rng.integers(0, 6))
        numbers = rng.integers(0, 3, n)
        columns = (rng.integers(0, 3, n), rng.integers(0, 2, n).astype(np.uint32), rng.integers(0, 3, n))
        order, bounds = grouped(numbers, 3)
        rows = [list(zip(*(c[order[a:b]].tolist() for c in columns), strict=True))
                for a, b in itertools.pairwise(bounds)]  # fmt: skip
        expected = all(group == sorted(group) for group in rows)
        assert in_order(bounds, order, *columns) == expected
        fell.append(not expected)
    assert 50 < sum(fell) < 250
