"""`count_crossings` against a dictionary."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from native.crossings import count_crossings


def table(slots: int) -> tuple[np.ndarray, np.ndarray]:
    return np.zeros(slots, np.uint64), np.full(slots, 0xFFFFFFFF, np.uint32)


@settings(deadline=None)  # the first call compiles
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 3))))
def test_no_more_than_there_are_and_all_of_one_key(seen: list[tuple[int, int]]) -> None:
    keys, places = np.array([k for k, _ in seen], np.uint64), np.array([p for _, p in seen], np.uint32)
    last: dict[int, int] = {}
    expected = 0
    for key, place in seen:
        expected += last.get(key, place) != place
        last[key] = place
    assert count_crossings(keys, places, *table(16)) <= expected
    assert count_crossings(keys, places, *table(1 << 16)) == expected  # 41 keys have slots of their own
    alone = keys == 7
    moves = int(np.count_nonzero(np.diff(places[alone].astype(int))))
    assert count_crossings(keys[alone], places[alone], *table(2)) == moves


def test_nothing_and_key_zero() -> None:
    assert count_crossings(np.zeros(0, np.uint64), np.zeros(0, np.uint32), *table(4)) == 0
    assert count_crossings(np.zeros(2, np.uint64), np.array([0, 1], np.uint32), *table(4)) == 1
