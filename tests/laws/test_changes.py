"""The change feed: scan + feed = table; deletions are in it; waiting wakes up."""

import random
import threading
import time

import numpy as np
import pytest

from embedding_store.contract import Cursor
from embedding_store.spec import Adagrad, TableSpec
from tests.flushes import begin, contents, flush_of

SPEC = TableSpec(name="item", dim=2, shards=3, optimizer=Adagrad(), initial_std=0.1)


class Mirror:
    """What a reader holds who only follows `changes`."""

    def __init__(self, store):
        self.store, self.cursor, self.rows = store, None, {}

    def follow(self):
        changes = self.store.changes("item", self.cursor)
        if changes.rescan:
            self.rows.clear()
        assert len(np.unique(changes.keys)) == len(changes.keys)
        assert changes.rows.found.all()
        for key, vector, count in zip(changes.keys.tolist(), changes.rows.vectors, changes.rows.count, strict=True):
            self.rows[key] = (vector.tobytes(), int(count))
        for key in changes.deleted.tolist():
            self.rows.pop(key, None)
        self.cursor = changes.cursor
        return changes


@pytest.mark.parametrize("seed", range(3))
def test_scan_plus_feed_is_the_table(store, seed):
    rng = random.Random(seed)
    begin(store, SPEC)
    mirrors, at = [], 0
    for _ in range(40):
        roll = rng.random()
        if roll < 0.2:
            mirrors.append(Mirror(store))
            mirrors[-1].follow()
        elif roll < 0.5 and mirrors:
            assert not rng.choice(mirrors).follow().rescan
        else:
            keys = rng.sample(range(30), rng.randint(0, 8))
            forget = rng.sample(range(30), rng.choice([0, 0, 2]))
            gradients = np.array([[rng.choice([-1, 0, 1]), 0] for _ in keys]).reshape(-1, 2)
            counts = [rng.randint(0, 1) for _ in keys]
            store.apply("item", flush_of(keys, at, at + 1, gradients=gradients, counts=counts, forget=forget))
            at += 1
    everything = np.array(sorted(contents(store, "item")), np.uint64)
    rows = store.lookup("item", everything)
    table = {
        key: (vector.tobytes(), int(count))
        for key, vector, count in zip(everything.tolist(), rows.vectors, rows.count, strict=True)
    }
    for mirror in [*mirrors, Mirror(store)]:
        mirror.follow()
        assert mirror.rows == table
        assert len(mirror.follow().keys) == 0
    assert sum(s.rows for s in store.status("item")) == len(table)


def test_forget_removes_and_is_told(store):
    begin(store, SPEC)
    store.apply("item", flush_of([1, 2, 3], 0, 3, counts=[1, 1, 1]))
    cursor = store.changes("item", None).cursor
    store.apply("item", flush_of([2, 4], 3, 4, gradients=np.ones((2, 2)), counts=[1, 0], forget=[1, 2]))
    changes = store.changes("item", cursor)
    assert sorted(changes.deleted.tolist()) == [1, 2]
    assert changes.keys.tolist() == [4]
    rows = store.lookup("item", np.array([1, 2, 3, 4], np.uint64))
    assert rows.found.tolist() == [False, False, True, True]
    assert rows.ids.tolist() == [b"", b"", b"3", b""]


def test_changes_tell_how_fresh_they_are(store):
    begin(store, SPEC)
    store.apply("item", flush_of([1], 0, 4, counts=[1], event_time_ms=50))
    changes = store.changes("item", None)
    assert (changes.clock, changes.event_time_ms, changes.produced_ms) == ((4, 4, 4), 50, 50)


def test_a_cursor_of_another_run_scans(store):
    begin(store, SPEC)
    store.apply("item", flush_of([1], 0, 1, counts=[1]))
    cursor = store.changes("item", None).cursor
    assert store.run_id() == store.run_id() != ""
    assert not store.changes("item", cursor).rescan
    old = Cursor("another run", cursor.positions)
    assert store.changes("item", old).rescan
    assert store.wait_for_changes(["item"], [old], 5)


def test_a_feed_that_was_cut_scans(store, monkeypatch):
    monkeypatch.setattr("embedding_store.shard.FEED_KEYS", 1)
    begin(store, SPEC.model_copy(update={"shards": 1}))
    start = store.changes("item", None).cursor
    for i in range(400):
        store.apply("item", flush_of(list(range(60)), i, i + 1, gradients=np.ones((60, 2))))
        if i == 0:
            assert not store.changes("item", start).rescan
    assert store.changes("item", start).rescan


def test_wait_wakes_up_at_a_change(opener):
    store, other = opener(), opener()
    begin(store, SPEC)
    begin(store, SPEC.model_copy(update={"name": "second"}))
    tables = ["item", "second"]
    cursors = [store.changes(name, None).cursor for name in tables]
    started = time.monotonic()
    assert not store.wait_for_changes(tables, cursors, 0.05)
    assert time.monotonic() - started >= 0.05
    woken: list[bool] = []
    thread = threading.Thread(target=lambda: woken.append(store.wait_for_changes(tables, cursors, 20)))
    thread.start()
    other.apply("item", flush_of([], 0, 1))  # no row: nobody is woken for it, and nothing is missed
    other.apply("second", flush_of([3], 0, 1, counts=[1]))
    thread.join(10)
    assert woken == [True]
    assert store.wait_for_changes(tables, cursors, 0)


def test_a_raised_generation_begins_every_feed_anew(opener):
    store, other = opener(), opener()
    begin(store, SPEC)
    store.apply("item", flush_of([1, 2], 0, 1, counts=[1, 1]))
    cursors = [store.changes("item", None).cursor]
    woken: list[bool] = []
    thread = threading.Thread(target=lambda: woken.append(store.wait_for_changes(["item"], cursors, 20)))
    thread.start()
    for generation in (1, 2):
        assert other.raise_generation() == generation
        thread.join(10)
        assert woken == [True]
        changes = store.changes("item", cursors[-1])
        assert (changes.rescan, sorted(changes.keys.tolist())) == (True, [1, 2])
        cursors.append(changes.cursor)
        assert not store.changes("item", cursors[-1]).rescan
        assert not store.wait_for_changes(["item"], cursors[-1:], 0.01)
    store.apply("item", flush_of([3], 1, 2, counts=[1], generation=2))
    assert [store.changes("item", cursor).rescan for cursor in cursors] == [True, True, False]
    assert store.changes("item", cursors[-1]).keys.tolist() == [3]


def test_a_table_made_at_a_raised_generation_begins_where_others_were_raised_to(store):
    begin(store, SPEC)
    store.raise_generation()
    begin(store, SPEC.model_copy(update={"name": "later"}))
    positions = {store.changes(name, None).cursor.positions for name in ("item", "later")}
    assert positions == {(str(1 << 40),) * 3}
