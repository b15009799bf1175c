"""What an event knows of its user, against a slow search: late events, equal times, partitions, pending entries."""

from __future__ import annotations

import numpy as np
import pytest

from embedding_store.contract import ENTRY
from native.histories import joined, known_before, laid_out, newest_known, seen_before

USERS = 6


def entries_of(rng, n: int, places: np.ndarray) -> np.ndarray:
    e = np.zeros(n, ENTRY)
    e["time_ms"], e["partition"] = rng.integers(-2, 5, n), rng.integers(0, 3, n)
    e["place"], e["item"] = places, rng.integers(0, 2**63, n)
    return e


def order_of(e):
    return e["time_ms"].item(), e["partition"].item(), e["place"].item()


def by_user(entries, users):
    order = np.lexsort((entries["place"], entries["partition"], entries["time_ms"], users))
    offsets = np.concatenate([[0], np.cumsum(np.bincount(users, minlength=USERS))])
    return offsets.astype(np.int64), entries[order]


def run(stored, fresh, user, time_ms, partition, place, length):
    n = len(user)
    lists = (*stored, *fresh)
    for array in (*lists, user, time_ms, partition, place):
        array.flags.writeable = False
    stored_known, fresh_known = np.empty(n, np.int64), np.empty(n, np.int64)
    known_before(*lists, user, time_ms, partition, place, stored_known, fresh_known)
    recent, lengths = np.zeros((n, length), np.uint64), np.zeros(n, np.int64)
    times = np.zeros((n, min(2, length)), np.int64)
    newest_known(*lists, user, stored_known, fresh_known, recent, lengths, times)
    offsets = np.zeros(n + 1, np.int64)
    np.cumsum(stored_known + fresh_known, out=offsets[1:])
    seen = np.zeros(offsets[-1], np.uint64)
    seen_before(*lists, user, stored_known, fresh_known, offsets, seen)
    return recent, lengths, times, offsets, seen


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("overlap", [False, True])
def test_events_know_what_is_strictly_earlier(seed, overlap):
    """overlap: the history shard is ahead, so that what is replayed is stored too; it counts once."""
    rng = np.random.default_rng(seed)
    n = 50
    places = rng.permutation(200)
    stored, fresh = entries_of(rng, 40, places[:40]), entries_of(rng, 30, places[40:70])
    stored_users, fresh_users = rng.integers(0, USERS - 1, 40), rng.integers(0, USERS - 1, 30)
    if overlap:
        fresh[:15], fresh_users[:15] = stored[:15], stored_users[:15]
    user = rng.integers(0, USERS, n)
    asked = entries_of(rng, n, places[70 : 70 + n])
    asked[:10], user[:10] = fresh[:10], fresh_users[:10]  # events whose own entry is among the fresh
    asked[10:20], user[10:20] = stored[10:20], stored_users[10:20]  # or already stored
    length = 4
    recent, lengths, times, offsets, seen = run(
        by_user(stored, stored_users), by_user(fresh, fresh_users), user,
        asked["time_ms"].copy(), asked["partition"].copy(), asked["place"].copy(), length,
    )  # fmt: skip
    everything = {
        (int(u), *order_of(e)): int(e["item"])
        for e, u in zip(np.concatenate([stored, fresh]), [*stored_users, *fresh_users], strict=True)
    }
    for i in range(n):
        known = sorted((k, item) for k, item in everything.items() if k[0] == user[i] and k[1:] < order_of(asked[i]))
        items = [item for _, item in known]
        assert recent[i, : lengths[i]].tolist() == items[::-1][:length]
        newest = [k[1] for k, _ in known][::-1][:2]
        assert times[i].tolist() == newest + [0] * (2 - len(newest))
        assert set(seen[offsets[i] : offsets[i + 1]].tolist()) == set(items)
        if not overlap:
            assert offsets[i + 1] - offsets[i] == len(items)


def test_nobody_and_nothing():
    offsets, none = np.zeros(USERS + 1, np.int64), np.zeros(0, ENTRY)
    index, part = np.zeros(0, np.int64), np.zeros(0, np.uint32)
    recent, lengths, _, _, seen = run((offsets, none), (offsets.copy(), none.copy()), index, index, part, index, 3)
    assert (recent.shape, len(lengths), len(seen)) == ((0, 3), 0, 0)
    one, zero = np.array([2]), np.zeros(1, np.int64)
    got = run((offsets, none), (offsets.copy(), none.copy()), one, zero, np.zeros(1, np.uint32), zero.copy(), 3)
    assert (got[1].tolist(), len(got[4])) == ([0], 0)


@pytest.mark.parametrize(("n", "length"), [(0, 3), (1, 1), (30, 7)])
def test_items_are_joined_and_their_numbers_laid_out_again(n, length):
    rng = np.random.default_rng(n)
    items, lengths = rng.integers(0, 2**63, (n, length)).astype(np.uint64), rng.integers(0, length + 1, n)
    there = np.arange(length) < lengths[:, None]
    for array in (items, lengths):
        array.flags.writeable = False
    found = np.empty(lengths.sum(), np.uint64)
    joined(items, lengths, found)
    np.testing.assert_array_equal(found, items[there])

    numbers, alive = rng.integers(0, 9, len(found)), rng.random(9) < 0.7
    out, want = np.full((n, length), 7), np.full((n, length), -1)
    laid_out(numbers, alive, lengths, out)
    want[there] = np.where(alive[numbers], numbers, -1)
    np.testing.assert_array_equal(out, want)
