"""Merging against sorted() in Python."""

import numpy as np
import pytest

from native.sequences import after, group_appends, merge_entries

DTYPE = np.dtype([("time", "<i8"), ("place", "<i8"), ("item", "<u8"), ("partition", "<u4"), ("weight", "<f4")])


def key(e):
    return (e["time"], e["partition"], e["place"], e["item"], e["weight"].view(np.uint32))


def entries(rng, n: int):
    e = np.zeros(n, DTYPE)
    e["time"], e["place"] = rng.integers(-3, 4, n), rng.integers(0, 3, n)
    e["item"] = rng.choice(np.array([1, 2**63, 2**64 - 1], np.uint64), n)
    e["partition"], e["weight"] = rng.choice(np.array([0, 1, 2**32 - 1], np.uint32), n), rng.choice([1.0, -1.0, 2.0], n)
    return e


def words(e):
    w = e.view(np.int64).reshape(-1, 4)
    w.flags.writeable = False
    return w


def test_after_is_the_total_order():
    e = entries(np.random.default_rng(0), 60)
    for i in range(60):
        for j in range(60):
            assert after(words(e), i, words(e), j) == (key(e[i]) > key(e[j]))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("length", [1, 3, 50])
def test_merge_keeps_the_largest(seed, length):
    rng = np.random.default_rng(seed)
    n = 6
    stored = [
        np.array(sorted(entries(rng, int(rng.integers(0, min(length, 6) + 1))), key=key), DTYPE) for _ in range(n)
    ]
    appends = entries(rng, 20)
    rows = rng.integers(0, n, 20)
    bounds, order = np.zeros(n + 1, np.int64), np.empty(20, np.int64)
    ordered = group_appends(words(appends), rows, bounds, order)
    groups = [[key(appends[k]) for k in order[bounds[i] : bounds[i + 1]]] for i in range(n)]
    assert ordered == all(g == sorted(g) for g in groups)
    assert sorted(order.tolist()) == list(range(20))
    order = np.array(sorted(range(20), key=lambda k: (rows[k], key(appends[k]))))
    stored_bounds = np.concatenate([[0], np.cumsum([len(s) for s in stored])])
    out_bounds = np.concatenate(
        [[0], np.cumsum([min(length, len(s) + b) for s, b in zip(stored, np.diff(bounds), strict=True)])]
    )
    out = np.empty((out_bounds[-1], 4), np.int64)
    merge_entries(words(np.concatenate(stored)), stored_bounds, words(appends), bounds, order, out_bounds, out)
    got = out.view(DTYPE).reshape(-1)
    for i in range(n):
        want = sorted([*map(key, stored[i]), *(key(a) for a, r in zip(appends, rows, strict=True) if r == i)])[-length:]
        assert [key(e) for e in got[out_bounds[i] : out_bounds[i + 1]]] == want


def test_nothing_to_merge():
    none, zero = np.zeros((0, 4), np.int64), np.zeros(1, np.int64)
    assert group_appends(none, np.zeros(0, np.int64), zero.copy(), np.zeros(0, np.int64))
    merge_entries(none, zero, none, zero, np.zeros(0, np.int64), zero, none.copy())
