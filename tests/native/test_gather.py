"""Rows laid end to end, against indexing in NumPy."""

import numpy as np
import pytest

from native.gather import gather


@pytest.mark.parametrize("dim", [1, 6, 64])
@pytest.mark.parametrize("n", [0, 1, 7, 8, 9, 300])
def test_rows_are_gathered_with_what_is_told_of_them(n, dim):
    rng = np.random.default_rng(n + dim)
    vectors = rng.normal(size=(50, dim)).astype(np.float32)
    vectors[3, -1], vectors[4, 0], vectors[5, 0] = np.nan, np.inf, -np.inf
    vectors[6] = np.float32(3.4e38)  # finite, though its sum is not
    vectors[7] = np.float32(-0.0)
    clock, updated_ms = rng.integers(1, 2**40, 50), rng.integers(1, 2**45, 50)
    slots = rng.integers(-2, 50, n)
    for array in (vectors, clock, updated_ms, slots):
        array.flags.writeable = False
    out, bitmap = np.full((n, dim), 7, np.float32), np.full(-(-n // 8), 255, np.uint8)
    found, refused, lowest_clock, lowest_ms = gather(slots, vectors, clock, updated_ms, out, bitmap)
    finite = np.isfinite(vectors).all(axis=1)
    there = (slots >= 0) & finite[slots]
    assert (found, refused) == (there.sum(), ((slots >= 0) & ~finite[slots]).sum())
    assert lowest_clock == clock[slots[there]].min(initial=2**62 if found else 0)
    assert lowest_ms == updated_ms[slots[there]].min(initial=2**62 if found else 0)
    want = np.where(there[:, None], vectors[slots], np.float32(0))
    np.testing.assert_array_equal(out.view(np.int32), want.view(np.int32))
    np.testing.assert_array_equal(bitmap, np.packbits(there, bitorder="little"))
