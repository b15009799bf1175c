"""Columns of byte strings against lists of bytes."""

import numpy as np
import pytest

from native.ragged import Ragged, concatenate


def random_strings(rng, n):
    return [rng.bytes(int(k)) for k in rng.integers(0, 9, n)]


@pytest.mark.parametrize("n", [0, 1, 40])
def test_round_trip_and_take(n):
    rng = np.random.default_rng(n)
    strings = random_strings(rng, n)
    column = Ragged.of(strings)
    assert (len(column), column.tolist(), column.lengths.tolist()) == (n, strings, [len(s) for s in strings])
    rows = rng.integers(0, n, 2 * n) if n else np.zeros(0, np.int64)
    assert column.take(rows).tolist() == [strings[i] for i in rows]
    assert column.take(np.zeros(0, np.int64)).tolist() == []


def test_a_column_may_begin_inside_its_data():
    strings = [b"", b"abc", b"d", b"", b"ef"]
    whole = Ragged.of(strings)
    part = Ragged(whole.offsets[1:4], whole.data)
    part.offsets.flags.writeable = False
    assert part.tolist() == [b"abc", b"d"]
    assert part.take(np.array([1, 0, 1])).tolist() == [b"d", b"abc", b"d"]
    assert concatenate([part, Ragged.empty(), whole]).tolist() == [b"abc", b"d", *strings]


def test_concatenating_nothing():
    assert concatenate([]).tolist() == []
    assert concatenate([Ragged.empty(), Ragged.of([b""])]).tolist() == [b""]
