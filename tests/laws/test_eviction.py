"""Eviction: by age and above a number of rows, in order, a bounded number a call, told by feed and status."""

import random

import numpy as np
import pytest

from embedding_store import eviction
from embedding_store.spec import Adagrad, TableSpec
from tests.flushes import begin, contents, flush_of

SPEC = TableSpec(name="item", dim=1, shards=1, optimizer=Adagrad(), initial_std=0.1)
DAY_MS = 86_400_000


def keys_of(store):
    return sorted(store.changes("item", None).keys.tolist())


def status(store):
    (shard,) = store.status("item")
    return {name: getattr(shard, name) for name in ("rows", "evicted", "expired", "forgotten", "remembered", "late")}


def test_rows_expire_by_the_time_of_their_last_update(store):
    begin(store, SPEC.model_copy(update={"ttl_s": 10.0}))
    store.apply("item", flush_of([1, 2], 0, 2, counts=[1, 1], now_ms=100_000))
    store.apply("item", flush_of([2], 2, 3, gradients=[[1.0]], now_ms=105_000))
    cursor = store.changes("item", None).cursor
    store.apply("item", flush_of([], 3, 4, now_ms=109_999))
    assert keys_of(store) == [1, 2]
    store.apply("item", flush_of([], 4, 5, now_ms=110_000))
    assert keys_of(store) == [2]
    changes = store.changes("item", cursor)
    assert (changes.deleted.tolist(), changes.keys.tolist(), changes.rescan) == ([1], [], False)
    assert status(store) == {"rows": 1, "evicted": 0, "expired": 1, "forgotten": 0, "remembered": 1, "late": 0}
    assert not store.lookup("item", np.array([1], np.uint64)).found[0]


def test_a_clock_that_goes_back_makes_nobody_younger(store):
    begin(store, SPEC.model_copy(update={"ttl_s": 10.0}))
    store.apply("item", flush_of([1], 0, 1, counts=[1], now_ms=100_000))
    store.apply("item", flush_of([2], 1, 2, counts=[1], now_ms=50_000))  # another worker's clock is behind
    assert store.lookup("item", np.array([2], np.uint64)).updated_ms.tolist() == [100_000]
    store.apply("item", flush_of([], 2, 3, now_ms=109_000))
    assert keys_of(store) == [1, 2]
    store.apply("item", flush_of([], 3, 4, now_ms=110_000))
    assert keys_of(store) == []


def test_a_read_expires_nothing(store):
    begin(store, SPEC.model_copy(update={"ttl_s": 0.001}))
    store.apply("item", flush_of([1], 0, 1, counts=[1], now_ms=1))
    for _ in range(3):
        assert store.lookup("item", np.array([1], np.uint64)).found[0]
    assert keys_of(store) == [1]


@pytest.mark.parametrize("limits", [{"max_rows": 12}, {"ttl_s": 0.004}, {"max_rows": 12, "ttl_s": 0.01}], ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_the_least_recent_go_in_order_and_max_rows_is_never_exceeded(store, seed, limits, monkeypatch):
    """Against a dict, with heads of indexes so short that they often don't tell all."""
    monkeypatch.setattr(eviction, "BATCH", 3)
    rng = random.Random(seed)
    begin(store, SPEC.model_copy(update=limits))
    last: dict[int, tuple[int, bytes]] = {}
    now_ms, gone = 0, {"evicted": 0, "expired": 0}
    for at in range(50):
        now_ms = max(now_ms, 1000 + at // rng.choice([1, 1, 3]))
        popular = sorted(last, key=last.get)[: rng.choice([0, 0, 5])]  # those next to go
        keys = sorted({*popular, *rng.sample(range(40), rng.choice([0, 1, 3, 20]))})
        store.apply("item", flush_of(keys, at, at + 1, gradients=np.ones((len(keys), 1)),
                                     counts=[1] * len(keys), now_ms=now_ms))  # fmt: skip
        most = 3 + len(set(keys) - set(last))
        last |= {key: (now_ms, key.to_bytes(8, "little")) for key in keys}
        due = sum(ms <= now_ms - 1000 * limits.get("ttl_s", 1e9) for ms, _ in last.values())
        over = len(last) - limits.get("max_rows", 10**9)
        leave = sorted(last, key=last.get)[: min(most, max(0, over, due))]
        gone["expired"] += min(due, len(leave))
        gone["evicted"] += len(leave) - min(due, len(leave))
        for key in leave:
            del last[key]
        assert keys_of(store) == sorted(last)
        assert status(store)["rows"] == len(last) <= limits.get("max_rows", 40)
        assert {name: status(store)[name] for name in gone} == gone
    assert sum(gone.values()) > 20


def test_max_rows_is_of_the_table_and_shared_by_shards(store):
    begin(store, SPEC.model_copy(update={"max_rows": 21, "shards": 4}))
    store.apply("item", flush_of(list(range(1000)), 0, 1, gradients=np.ones((1000, 1))))
    assert [s.rows for s in store.status("item")] == [5, 5, 5, 5]


def test_expiry_is_a_bounded_number_a_call(store):
    n = 3 * eviction.BATCH
    begin(store, SPEC.model_copy(update={"ttl_s": 1.0}))
    store.apply("item", flush_of(list(range(n)), 0, 1, counts=[1] * n, now_ms=0))
    cursor, told = store.changes("item", None).cursor, []
    for at in range(1, 5):
        store.apply("item", flush_of([], at, at + 1, now_ms=DAY_MS))
        assert status(store)["rows"] == max(0, n - at * eviction.BATCH)
        changes = store.changes("item", cursor)
        cursor, told = changes.cursor, told + changes.deleted.tolist()
    assert sorted(told) == list(range(n))


def test_an_evicted_row_comes_back_by_an_own_event_and_not_by_a_late_gradient(store):
    begin(store, SPEC.model_copy(update={"max_rows": 1}))
    store.apply("item", flush_of([1], 0, 1, counts=[1], gradients=[[1.0]], now_ms=1))
    store.apply("item", flush_of([2], 1, 2, counts=[1], gradients=[[1.0]], now_ms=2))
    assert keys_of(store) == [2]
    store.apply("item", flush_of([1], 2, 3, gradients=[[5.0]], now_ms=3))
    assert keys_of(store) == [2]
    assert status(store) == {"rows": 1, "evicted": 1, "expired": 0, "forgotten": 0, "remembered": 1, "late": 1}
    # an own event is news whatever its event time: it has not been applied before
    store.apply("item", flush_of([1], 3, 4, own=[(0, 0, 0, 0)], gradients=[[0.0]], now_ms=4))
    rows = store.lookup("item", np.array([1, 2], np.uint64))
    assert (rows.found.tolist(), rows.count.tolist(), rows.ids.at(0)) == ([True, False], [1, 0], b"1")
    fresh = np.array([[1.0]], np.float32)
    reference = TableSpec(**{**SPEC.model_dump(), "name": "fresh"})
    begin(store, reference)
    np.testing.assert_array_equal(rows.vectors[:1], store.lookup("fresh", np.array([1], np.uint64)).vectors * fresh)


def test_an_evicted_key_is_remembered_for_so_many_events(store):
    begin(store, SPEC.model_copy(update={"max_rows": 1, "remember_events": 100}))
    store.apply("item", flush_of([1], 0, 1, counts=[1], now_ms=1))
    store.apply("item", flush_of([2], 1, 2, counts=[1], now_ms=2))
    store.apply("item", flush_of([], 2, 101, now_ms=3))
    assert status(store)["remembered"] == 1
    store.apply("item", flush_of([], 101, 102, now_ms=3))
    assert status(store)["remembered"] == 0
    store.apply("item", flush_of([1], 102, 103, gradients=[[1.0]], now_ms=3))  # as good as new
    assert keys_of(store) == [1]


def test_marks_of_evicted_keys_are_bounded(store, monkeypatch):
    monkeypatch.setattr(eviction, "MAX_EVICTED", 5)
    begin(store, SPEC.model_copy(update={"max_rows": 2}))
    for at in range(40):
        store.apply("item", flush_of([at], at, at + 1, counts=[1], now_ms=at))
    assert status(store)["remembered"] <= 6
    assert keys_of(store) == [38, 39]


def test_a_sequence_that_was_evicted_starts_anew(store):
    spec = TableSpec(name="history", kind="sequence", length=4, shards=1, max_rows=1)
    begin(store, spec)
    for at, user in enumerate([1, 1, 2, 1]):
        appends = [(0, 100 + at, at, at, 0, 1.0)]
        store.apply("history", flush_of([user], at, at + 1, counts=[1], appends=appends, now_ms=at))
    got = store.histories("history", np.array([1, 2], np.uint64))
    assert (got.found.tolist(), got.count.tolist(), got.entries["item"].tolist()) == ([True, False], [1, 0], [3])
    assert len(contents(store, "history")) == 1
