"""Sequence tables: sorted inserts that commute."""

import random

import numpy as np
import pytest

from embedding_store.errors import BadRequest
from embedding_store.spec import TableSpec
from tests.flushes import SOURCE, begin, contents, flush_of

SPEC = TableSpec(name="history", kind="sequence", length=6, shards=2)


@pytest.mark.parametrize("seed", range(4))
def test_appends_commute_under_any_split_and_order(store, seed):
    rng = random.Random(seed)
    # (user, time, place, item, partition, weight); times collide so that partition and place decide
    events = [
        (rng.randrange(5), rng.randrange(12), i << 16, rng.randrange(2**64), rng.randrange(3), 1.5) for i in range(60)
    ]
    begin(store, SPEC)
    rng.shuffle(events)
    at = 0
    while at < len(events):
        size = rng.randint(1, 13)
        batch = events[at : at + size]
        users = sorted({e[0] for e in batch})
        appends = [(users.index(e[0]), *e[1:]) for e in batch]
        store.apply("history", flush_of(users, at, at + len(batch), appends=appends, counts=[1] * len(users)))
        at += len(batch)
    got = store.histories("history", np.arange(6, dtype=np.uint64))
    assert got.found.tolist() == [True] * 5 + [False]
    for user in range(5):
        mine = sorted((e[1], e[4], e[2], e[3]) for e in events if e[0] == user)[-6:]
        entries = got.entries[got.offsets[user] : got.offsets[user + 1]]
        assert [(e["time_ms"], e["partition"], e["place"], e["item"]) for e in entries.tolist() and entries] == mine


def test_one_key_with_many_appends_out_of_order(store):
    begin(store, SPEC)
    times = np.random.default_rng(0).permutation(5000)
    store.apply("history", flush_of([1], 0, 1, appends=[(0, int(t), int(t), int(t), 0, 1.0) for t in times]))
    got = store.histories("history", np.array([1, 1], np.uint64))
    assert got.entries["time_ms"].tolist() == 2 * list(range(4994, 5000))
    assert got.offsets.tolist() == [0, 6, 12]


def test_a_late_replay_that_falls_off_still_counts(store):
    begin(store, SPEC)
    store.apply("history", flush_of([1], 0, 6, appends=[(0, 100 + i, i, i, 0, 1.0) for i in range(6)], counts=[6]))
    before = store.histories("history", np.array([1], np.uint64)).entries.tobytes()
    store.apply("history", flush_of([1], 6, 7, appends=[(0, 1, 6, 9, 0, 1.0)], counts=[1]))
    after = store.histories("history", np.array([1], np.uint64))
    assert (after.entries.tobytes(), after.count.tolist(), after.clock.tolist()) == (before, [7], [7])


def test_rows_without_ids_are_kept_as_any_and_forgotten_by_key(store):
    """As the table of transitions has them: no check bits, no ids, tombstones without check bits."""
    spec = begin(store, TableSpec(name="next", kind="sequence", length=3, shards=1))
    nameless = [(0, b"")] * 2
    for n in range(2):
        appends = [(0, 10 + n, n, 70 + n, 0, 1.0), (1, 10 + n, n, 80 + n, 0, 1.0)]
        own = [(0, 10 + n, n, 0), (1, 10 + n, n, 0)]
        store.apply(spec.name, flush_of([5, 6], n, n + 1, appends=appends, own=own, identities=nameless))
    found = store.histories(spec.name, np.array([5, 6], np.uint64))
    assert found.entries["item"].tolist() == [70, 71, 80, 81]
    assert found.count.tolist() == [2, 2]
    gone = flush_of([], 2, 3, forget=[5], forget_orders=[(20, 9, 0)], identities=[])
    store.apply(spec.name, gone)
    found = store.histories(spec.name, np.array([5, 6], np.uint64))
    assert (found.entries["item"].tolist(), found.found.tolist()) == ([80, 81], [False, True])


def test_columns_of_the_wrong_kind_are_refused(store):
    begin(store, SPEC)
    before = contents(store, "history")
    with pytest.raises(BadRequest, match="has no vectors"):
        store.apply("history", flush_of([1], 0, 1, gradients=np.zeros((1, 0))))
    with pytest.raises(BadRequest, match=r"append_rows index the flush's 1 keys"):
        store.apply("history", flush_of([1], 0, 1, appends=[(1, 1, 1, 1, 0, 1.0)]))
    with pytest.raises(BadRequest, match=r"read it with histories\(\)"):
        store.lookup("history", np.array([1], np.uint64))
    assert contents(store, "history") == before
    assert dict(store.status("history")[0].offsets) == {SOURCE: 0}
