"""Kernels over fetched records against what they say. Records themselves: tests/ingest/test_kafka_batches.py."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from native.kafka_records import count_lines, fit


def test_lines_are_newlines_and_one() -> None:
    values = [b"", b"a", b"a\nb", b"\n\n", None]
    data = np.frombuffer(b"\n" + b"".join(value or b"" for value in values) + b"\n\n", np.uint8)
    size = np.array([-1 if value is None else len(value) for value in values])
    start = 1 + np.cumsum(np.maximum(size, 0)) - np.maximum(size, 0)
    out = np.empty(len(values), np.int64)
    count_lines(data, start, size, out)
    assert out.tolist() == [1, 1, 2, 3, 1]


@pytest.mark.parametrize("byte", [10, 11, 0, 138, 255])
def test_lines_of_long_values_and_of_bytes_close_to_newlines(byte: int) -> None:
    rng = np.random.default_rng(byte)
    data = np.where(rng.random(20_000) < 0.5, 10, byte).astype(np.uint8)
    data[9000:14000] = 10  # more than the bytes of a sum hold
    start, size = np.array([0, 3, 8990, 13_995]), np.array([20_000, 7, 5010, 6005])
    out = np.empty(4, np.int64)
    count_lines(data, start, size, out)
    assert out.tolist() == [1 + int((data[a : a + n] == 10).sum()) for a, n in zip(start, size, strict=True)]


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.booleans(), st.integers(1, 5)), max_size=8),
    st.integers(0, 3), st.integers(-1, 12), st.integers(0, 6), st.integers(1, 9),
)  # fmt: skip
def test_fit_takes_records_one_by_one(rows: list, first: int, stop: int, have: int, limit: int) -> None:
    first, have = min(first, len(rows)), min(have, limit - 1)
    taken, events, closed = 0, have, False
    for i in range(first, len(rows)):
        null, n = rows[i]
        if 0 <= stop <= i:
            break
        if events and events + n > limit:
            closed = True
            break
        taken, events = taken + 1, events + n
        if events >= limit or null:
            closed = True
            break
    columns = (np.arange(len(rows)), np.array([-1 if null else 7 for null, _ in rows], np.int64),
               np.array([n for _, n in rows], np.int64))  # fmt: skip
    assert fit(*columns, first, stop, have, limit) == (taken, events, closed)
