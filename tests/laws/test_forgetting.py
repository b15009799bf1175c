"""Forgetting: what came before the tombstone does not come back, by whatever way; what is newer does, exactly."""

import random
from collections import defaultdict

import numpy as np
import pytest

from embedding_store.spec import Adagrad, TableSpec
from tests.flushes import begin, contents, flush_of, outcomes, whole_state

ITEM = TableSpec(name="item", dim=2, shards=2, optimizer=Adagrad(), initial_std=0.1)
HISTORY = TableSpec(name="history", kind="sequence", length=6, shards=2)
KEY = np.array([1], np.uint64)
TOMBSTONE = (100, 5 << 16, 0)


def forgotten(store, spec=ITEM):
    """A row that had two events and was forgotten at TOMBSTONE."""
    begin(store, spec)
    own = [(0, 50, 0, 0), (0, 60, 1 << 16, 0)]
    columns = {"gradients": [[1, 1]]} if spec.kind == "embedding" else {"appends": [(0, 50, 0, 7, 0, 1.0)]}
    store.apply(spec.name, flush_of([1], 0, 2, own=own, **columns))
    store.apply(spec.name, flush_of([], 2, 3, forget=[1], forget_orders=[TOMBSTONE]))
    return sum(s.late for s in store.status(spec.name))


def late(store, table="item"):
    return sum(s.late for s in store.status(table))


def test_it_does_not_come_back_by_a_late_gradient_or_a_negative(store):
    forgotten(store)
    cursor = store.changes("item", None).cursor
    initial = store.lookup("item", KEY).vectors
    for at in range(3, 6):
        # key 2 is the event's own item; 1 is a negative of its step, or in the history of its user
        store.apply("item", flush_of([1, 2], at, at + 1, counts=[0, 1], gradients=[[1, 2], [0, 1]]))
    rows = store.lookup("item", KEY)
    assert (rows.found[0], rows.count[0], rows.ids.at(0)) == (False, 0, b"")
    np.testing.assert_array_equal(rows.vectors, initial)
    assert 1 not in store.changes("item", cursor).keys.tolist()
    assert (late(store), sum(s.forgotten for s in store.status("item"))) == (3, 1)


def test_it_does_not_come_back_by_a_replay(store):
    begin(store, ITEM)
    first = flush_of([1], 0, 2, own=[(0, 50, 0, 0), (0, 60, 1 << 16, 0)], gradients=[[1, 1]])
    tomb = flush_of([], 2, 3, forget=[1], forget_orders=[TOMBSTONE])
    for flush in (first, tomb):
        store.apply("item", flush)
    before = whole_state(store, "item")
    for flush in (first, tomb, flush_of([1], 0, 3, own=[(0, 50, 0, 0)], gradients=[[1, 1]])):
        assert outcomes(store.apply("item", flush)) == {"duplicate"}
    assert whole_state(store, "item") == before


def test_it_does_not_come_back_by_a_late_own_event_and_does_by_a_newer_one(store):
    forgotten(store)
    store.apply("item", flush_of([1], 3, 5, own=[(0, 99, 9 << 16, 1), (0, 100, 4 << 16, 0)], gradients=[[1, 1]]))
    assert not store.lookup("item", KEY).found[0]
    assert late(store) == 3  # two events, and the gradient that came with them
    initial = store.lookup("item", KEY).vectors
    own = [(0, 101, 8 << 16, 0), (0, 70, 9 << 16, 0), (0, 100, 6 << 16, 0)]
    store.apply("item", flush_of([1], 5, 8, own=own, gradients=[[0, 0]]))
    rows = store.lookup("item", KEY)
    assert (rows.found[0], rows.count[0], rows.ids.at(0), late(store)) == (True, 2, b"1", 4)
    np.testing.assert_array_equal(rows.vectors, initial)
    assert rows.popularity[0] == 2
    # it is a row again: gradients move it, and events older than the tombstone still don't count
    store.apply("item", flush_of([1], 8, 9, own=[(0, 80, 10 << 16, 0)], gradients=[[1, 1]]))
    rows = store.lookup("item", KEY)
    assert (rows.count[0], late(store), (rows.vectors != initial).all()) == (2, 5, True)


def test_of_the_tombstones_own_call_only_what_is_behind_it_stays(store):
    """In event time, and in its own partition in the stream as well."""
    begin(store, ITEM)
    own = [(0, 150, 4 << 16, 0), (0, 150, 6 << 16, 0), (0, 99, 7 << 16, 0), (0, 101, 0, 1), (0, 99, 1 << 16, 1)]
    store.apply("item", flush_of([1], 0, 9, own=own, gradients=[[1, 1]], forget=[1], forget_orders=[TOMBSTONE]))
    rows = store.lookup("item", KEY)
    assert (rows.found[0], rows.count[0]) == (True, 2)
    fresh = ITEM.model_copy(update={"name": "fresh"})
    begin(store, fresh)
    np.testing.assert_array_equal(rows.vectors, store.lookup("fresh", KEY).vectors)  # no gradient of before


def test_a_sequence_keeps_what_is_newer(store):
    forgotten(store, HISTORY)
    appends = [(0, t, t << 16, t, 0, 1.0) for t in (90, 120, 100, 110)]
    own = [(0, t, t << 16, 0) for t in (90, 120, 100, 110)]
    store.apply("history", flush_of([1], 3, 7, own=own, appends=appends))
    got = store.histories("history", KEY)
    assert (got.entries["item"].tolist(), got.count.tolist()) == ([100, 110, 120], [3])
    assert late(store, "history") == 1


def test_a_forget_without_a_place_forgets_what_is_applied(store):
    begin(store, ITEM)
    store.apply("item", flush_of([1, 2], 0, 2, counts=[1, 1], gradients=np.ones((2, 2))))
    store.apply("item", flush_of([1], 2, 3, counts=[1], gradients=[[1, 1]], forget=[1, 1]))
    assert sorted(contents(store, "item")) == [2]
    store.apply("item", flush_of([1], 3, 4, gradients=[[1, 1]]))
    assert sorted(contents(store, "item")) == [2]
    store.apply("item", flush_of([1], 4, 5, counts=[1]))
    assert store.lookup("item", KEY).count.tolist() == [1]


def test_a_key_that_was_never_seen_can_be_forgotten(store):
    begin(store, ITEM)
    store.apply("item", flush_of([], 0, 1, forget=[1], forget_orders=[TOMBSTONE]))
    store.apply("item", flush_of([1], 1, 2, own=[(0, 99, 0, 1)]))
    assert contents(store, "item") == {}
    assert (late(store), sum(s.forgotten for s in store.status("item"))) == (1, 0)


def test_a_forget_is_remembered_for_so_many_events_also_beside_a_row(store):
    begin(store, ITEM.model_copy(update={"remember_events": 50, "shards": 1}))
    store.apply("item", flush_of([], 0, 1, forget=[1, 2], forget_orders=[TOMBSTONE, TOMBSTONE]))
    store.apply("item", flush_of([2], 1, 2, own=[(0, 200, 0, 0)]))
    store.apply("item", flush_of([2], 2, 50, own=[(0, 10, 0, 1)]))
    assert (late(store), store.status("item")[0].remembered) == (1, 1)
    store.apply("item", flush_of([1, 2], 50, 51, own=[(1, 10, 0, 1)], gradients=np.ones((2, 2))))
    rows = store.lookup("item", np.array([1, 2], np.uint64))
    assert (rows.found.tolist(), rows.count.tolist()) == ([False, True], [0, 2])
    assert store.status("item")[0].remembered == 0
    store.apply("item", flush_of([1], 51, 52, own=[(0, 10, 0, 1)]))
    assert store.lookup("item", KEY).found[0]


def test_a_row_that_is_evicted_keeps_the_memory_of_its_forget(store):
    begin(store, ITEM.model_copy(update={"max_rows": 1, "shards": 1}))
    store.apply("item", flush_of([], 0, 1, forget=[1], forget_orders=[TOMBSTONE], now_ms=0))
    store.apply("item", flush_of([1], 1, 2, own=[(0, 200, 0, 0)], now_ms=1))
    store.apply("item", flush_of([2], 2, 3, own=[(0, 200, 0, 0)], now_ms=2))
    assert sorted(contents(store, "item")) == [2]
    store.apply("item", flush_of([1], 3, 4, own=[(0, 10, 0, 1)], now_ms=3))
    assert (sorted(contents(store, "item")), late(store)) == ([2], 1)
    store.apply("item", flush_of([1], 4, 5, own=[(0, 300, 0, 1)], now_ms=4))
    assert sorted(contents(store, "item")) == [1]


@pytest.mark.parametrize("own", [True, False], ids=["by its own call", "by another's"])
def test_a_mark_is_remembered_from_when_it_became_one(store, own):
    """And not from the forget on, which its row had outlived."""
    begin(store, ITEM.model_copy(update={"max_rows": 1, "shards": 1, "remember_events": 50}))
    store.apply("item", flush_of([], 0, 1, forget=[1], forget_orders=[TOMBSTONE], now_ms=0))
    if own:  # two rows in one call: the key of smaller bytes goes at once
        store.apply("item", flush_of([1, 2], 1, 40, own=[(0, 200, 0, 0), (1, 200, 0, 0)], now_ms=1))
    else:
        store.apply("item", flush_of([1], 1, 2, own=[(0, 200, 0, 0)], now_ms=1))
        store.apply("item", flush_of([2], 2, 40, own=[(0, 200, 0, 0)], now_ms=2))
    assert (sorted(contents(store, "item")), store.status("item")[0].remembered) == ([2], 1)
    store.apply("item", flush_of([1], 40, 89, own=[(0, 10, 0, 1)], now_ms=3))
    assert (late(store), store.status("item")[0].remembered) == (1, 1)
    store.apply("item", flush_of([], 89, 90, now_ms=4))
    assert store.status("item")[0].remembered == 0


def test_a_count_before_admission_is_forgotten_too(store):
    begin(store, ITEM.model_copy(update={"admit_after": 3}))
    store.apply("item", flush_of([1], 0, 2, own=[(0, 1, 0, 0), (0, 2, 0, 0)]))
    store.apply("item", flush_of([], 2, 3, forget=[1], forget_orders=[TOMBSTONE]))
    assert sum(s.stubs for s in store.status("item")) == 0
    store.apply("item", flush_of([1], 3, 6, own=[(0, 99, 0, 0), (0, 101, 0, 0), (0, 102, 0, 0)]))
    assert (contents(store, "item"), sum(s.stubs for s in store.status("item"))) == ({}, 1)
    store.apply("item", flush_of([1], 6, 8, own=[(0, 50, 0, 1), (0, 103, 0, 0)]))
    assert store.lookup("item", KEY).count.tolist() == [3]


@pytest.mark.parametrize("seed", range(4))
def test_counts_and_sequences_are_those_of_the_events_that_nothing_forgot(store, seed):
    """Event by event against a dict, however the stream is cut into calls: one partition, times that jump."""
    rng = random.Random(seed)
    for spec in (ITEM, HISTORY):
        begin(store, spec)
    stream = []  # ("event" | "forget", key, time)
    for _ in range(120):
        stream.append((rng.choice(["event"] * 5 + ["forget"]), rng.randrange(5), rng.randrange(60)))
    kept, fence = defaultdict(list), {}
    for place, (what, key, time) in enumerate(stream):
        order = (time, 0, place << 16)
        if what == "forget":
            kept[key], fence[key] = [], max(order, fence.get(key, order))
        elif order > fence.get(key, (-1, 0, 0)):
            kept[key].append(order)
    at = 0
    while at < len(stream):
        stop = at + 1
        while stop < len(stream) and stop - at < 7 and stream[stop - 1][0] == "event":
            stop += 1  # a tombstone ends its batch
        batch = list(enumerate(stream))[at:stop]
        keys = sorted({key for _, (what, key, _) in batch if what == "event"})
        own = [(keys.index(k), t, p << 16, 0) for p, (what, k, t) in batch if what == "event"]
        forgets = {"forget": [k for _, (what, k, _) in batch if what == "forget"],
                   "forget_orders": [(t, p << 16, 0) for p, (what, _, t) in batch if what == "forget"]}  # fmt: skip
        noise = sorted({*keys, *(rng.randrange(5) for _ in range(3))})
        gradients = np.ones((len(noise), 2))
        mine = [(noise.index(keys[o[0]]), *o[1:]) for o in own]
        store.apply("item", flush_of(noise, at, stop, own=mine, gradients=gradients, **forgets))
        appends = [(o[0], o[1], o[2], o[2] >> 16, 0, 1.0) for o in own]
        store.apply("history", flush_of(keys, at, stop, own=own, appends=appends, **forgets))
        at = stop
    everything = np.arange(5, dtype=np.uint64)
    rows, got = store.lookup("item", everything), store.histories("history", everything)
    for key in range(5):
        # a gradient alone makes a row of a key that was never forgotten
        assert rows.count[key] == len(kept[key])
        assert rows.found[key] == bool(kept[key]) or key not in fence
        assert got.count[key] == len(kept[key])
        entries = got.entries[got.offsets[key] : got.offsets[key + 1]]
        assert entries["item"].tolist() == [order[2] >> 16 for order in sorted(kept[key])][-6:]
