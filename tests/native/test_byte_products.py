"""Sums of products of bytes, by the instruction and by loops, against NumPy."""

import numpy as np
import pytest

from native.byte_products import ROWS, TOGETHER, block_sums_in_loops, block_sums_of_four, block_sums_of_one


@pytest.mark.parametrize("groups", [1, 2, 16, 33])
@pytest.mark.parametrize("extreme", [False, True])
def test_sums_are_exact_and_nothing_else_is_written(groups, extreme):
    rng = np.random.default_rng(groups)
    codes = rng.integers(0, 256, (3, 2, groups, ROWS, TOGETHER)).astype(np.uint8)
    tastes = rng.integers(-128, 128, (6, groups * TOGETHER)).astype(np.int8)
    if extreme:  # what would be cut off in 16 bits
        codes[:], tastes[:] = 255, np.where(rng.random(tastes.shape) < 0.9, -128, 127)
    words = tastes.view(np.int32)
    every = codes.reshape(6, groups, ROWS, TOGETHER).astype(np.int64)
    expected = np.einsum("bgrk,ugk->ubr", every, tastes.reshape(6, groups, TOGETHER).astype(np.int64))
    for array in (codes, words):
        array.flags.writeable = False
    for block in (0, 3, 5):
        for users, call in (
            (4, lambda sums, b=block: block_sums_of_four(codes, b, words, 2, sums, 1, 8)),
            (1, lambda sums, b=block: block_sums_of_one(codes, b, words, 2, sums, 1, 8)),
            (3, lambda sums, b=block: block_sums_in_loops(codes, b, words, 2, 3, sums, 1, 8)),
        ):
            sums = np.full((6, 8 + ROWS + 3), -7, np.int32)
            call(sums)
            np.testing.assert_array_equal(sums[1 : 1 + users, 8 : 8 + ROWS], expected[2 : 2 + users, block])
            sums[1 : 1 + users, 8 : 8 + ROWS] = -7
            assert (sums == -7).all()
