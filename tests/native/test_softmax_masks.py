"""Masks against the sentence that defines them."""

import numpy as np
import pytest

from native.softmax_masks import own_columns, scratch


@pytest.mark.parametrize("most", [6, 60, 900])  # from 60 on some have more than is compared item by item
@pytest.mark.parametrize(
    ("n", "group", "items"),
    [(0, 4, 3), (4, 4, 2), (24, 8, 9), (30, 5, 200), (6, 1, 3), (128, 64, 40), (210, 70, 90), (384, 192, 500)],
)
def test_rows_leave_out_padding_repeats_and_what_their_user_has(n, group, items, most):
    rng = np.random.default_rng(n)
    target, is_column = rng.integers(0, items, n), rng.random(n) < 0.8
    offsets = np.concatenate([[0], np.cumsum(rng.integers(0, most, n))]).astype(np.int64)
    seen = rng.integers(-1, items, offsets[-1])
    out, places = np.empty((n, group), bool), scratch(items, group)
    for array in (target, is_column, offsets, seen):
        array.flags.writeable = False
    own_columns(group, target, is_column, offsets[:-1], offsets[1:], seen, out, places)
    assert not places.any()
    for i in range(n):
        start = i // group * group
        own = set(seen[offsets[i] : offsets[i + 1]].tolist())
        for j in range(group):
            column = start + j
            apart = target[column] != target[i] and int(target[column]) not in own
            assert out[i, j] == (is_column[column] and (column == i or apart))
