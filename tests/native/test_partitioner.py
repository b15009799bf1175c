"""`partitions_of` against the client's own murmur2."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2

from native.partitioner import partitions_of
from native.ragged import Ragged


@settings(deadline=None)  # the kernel may be compiled first
@given(st.lists(st.binary(max_size=20)), st.integers(1, 1000))
def test_keys_go_where_kafka_sends_them(keys: list[bytes], partitions: int) -> None:
    ids = Ragged.of(keys)
    expected = [(murmur2(key) & 0x7FFFFFFF) % partitions for key in keys]
    assert partitions_of(ids.data, ids.offsets, partitions).tolist() == expected


def test_keys_may_lie_anywhere_and_be_read_only() -> None:
    data = np.frombuffer(b"..user-7user-8", np.uint8)
    assert not data.flags.writeable
    found = partitions_of(data, np.array([2, 8, 14]), 64)
    assert found.tolist() == [(murmur2(key) & 0x7FFFFFFF) % 64 for key in (b"user-7", b"user-8")]


@pytest.mark.parametrize("n", [0, 1])
def test_few(n: int) -> None:
    ids = Ragged.of([b"a"] * n)
    assert len(partitions_of(ids.data, ids.offsets, 3)) == n
