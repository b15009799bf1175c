"""Admission: a key becomes a row at its n-th own event; until then it is counted and nothing else."""

import numpy as np
import pytest
from pydantic import ValidationError

from embedding_store.spec import Sgd, TableSpec
from tests.flushes import begin, contents, flush_of

SPEC = TableSpec(name="item", dim=2, shards=2, admit_after=3, initial_std=0.1, optimizer=Sgd(learning_rate=1.0))
KEYS = np.arange(8, dtype=np.uint64)


def stubs(store):
    return sum(s.stubs for s in store.status("item"))


@pytest.mark.parametrize("split", [[1, 1, 1, 1], [2, 2], [1, 3], [4]])
def test_the_third_event_admits_and_the_count_is_exact(store, split):
    begin(store, SPEC)
    initial, at, total = store.lookup("item", KEYS[:1]).vectors, 0, 0
    for count in split:
        flush = flush_of([0], at, at + count, counts=[count], gradients=[[1, 0]])
        cursor = store.changes("item", None).cursor
        store.apply("item", flush)
        at, total = at + count, total + count
        rows = store.lookup("item", KEYS[:1])
        if total < 3:
            assert (rows.found[0], rows.count[0], rows.ids.at(0)) == (False, 0, b"")
            np.testing.assert_array_equal(rows.vectors, initial)
            assert (stubs(store), len(store.changes("item", None).keys)) == (1, 0)
            assert store.changes("item", cursor).deleted.tolist() == []
        else:
            assert (rows.found[0], rows.count[0], rows.ids.at(0), rows.check[0]) == (True, total, b"0", 0)
            assert (rows.last_seen[0], rows.popularity[0] > 1) == (at, True)
            assert (stubs(store), sum(s.rows for s in store.status("item"))) == (0, 1)
    # the gradients of the calls before the admitting one were not taken
    taken = sum(1 for i in range(len(split)) if sum(split[: i + 1]) >= 3)
    np.testing.assert_allclose(store.lookup("item", KEYS[:1]).vectors - initial, [[-taken, 0]], rtol=1e-6)


def test_a_gradient_never_admits(store):
    begin(store, SPEC)
    for at in range(5):
        store.apply("item", flush_of([1, 2], at, at + 1, counts=[int(at < 2), 0], gradients=np.ones((2, 2))))
    assert contents(store, "item") == {}
    assert (stubs(store), sum(s.rows for s in store.status("item"))) == (1, 0)


def test_stubs_are_bounded_and_the_oldest_go(store):
    begin(store, SPEC.model_copy(update={"shards": 1, "max_stubs": 4}))
    for at in range(6):
        store.apply("item", flush_of([at], at, at + 1, counts=[1], now_ms=1000 + at))
    assert stubs(store) == 4
    store.apply("item", flush_of([1, 5], 6, 10, counts=[2, 2], now_ms=2000))
    rows = store.lookup("item", KEYS)
    assert rows.found.tolist() == [False] * 5 + [True, False, False]  # the count of 1 was dropped and began anew
    store.apply("item", flush_of([1], 10, 11, counts=[1], now_ms=2000))
    assert store.lookup("item", KEYS).count.tolist() == [0, 3, 0, 0, 0, 3, 0, 0]


def test_many_new_keys_in_one_call_keep_the_bound(store):
    begin(store, SPEC.model_copy(update={"shards": 1, "max_stubs": 10}))
    store.apply("item", flush_of(list(range(50)), 0, 50, counts=[1] * 50))
    assert stubs(store) == 10
    assert contents(store, "item") == {}


def test_an_admitted_row_stays_admitted(store):
    begin(store, SPEC)
    store.apply("item", flush_of([1], 0, 3, counts=[3]))
    store.apply("item", flush_of([1], 3, 4, gradients=[[1, 1]]))
    rows = store.lookup("item", KEYS[1:2])
    assert (rows.found[0], rows.count[0], rows.clock[0]) == (True, 3, 4)


def test_declarations_that_can_not_be_kept_are_refused():
    for change, message in (
        ({"admit_after": -1}, "greater than or equal to 0"),
        ({"ttl_s": -1.0}, "greater than 0"),
        ({"ttl_s": 0.0}, "greater than 0"),
        ({"max_rows": 0}, "greater than or equal to 1"),
        ({"max_rows": 3}, "max_rows 3 is below one per shard, of 4"),
        ({"max_stubs": 3}, "max_stubs 3 is below one per shard, of 4"),
        ({"kind": "sequence", "dim": 0, "length": 3, "admit_after": 2}, "admit_after is for embedding tables"),
        ({"kind": "dense", "max_rows": 100}, "a parameter can't lose rows"),
        ({"kind": "record", "dim": 3, "length": 3}, "needs length ≥ 1 and dim 0"),
        ({"kind": "record", "dim": 0, "length": 5000}, "less than or equal to 4096"),
    ):
        with pytest.raises(ValidationError, match=message):
            TableSpec(**{"name": "item", "dim": 1, **change})
