"""Ids whose 64-bit keys collide: who came first has the key; the other's part of a call is refused, whole."""

import numpy as np

from embedding_store.spec import Adagrad, TableSpec
from native.ragged import Ragged
from tests.flushes import begin, contents, flush_of, outcomes

ITEM = TableSpec(name="item", dim=2, shards=2, optimizer=Adagrad(), initial_std=0.1)
KEY = (1 << 63) | 12345
OWNER, OTHER_CHECK, OTHER_BYTES = (7, b"first"), (8, b"other"), (7, b"third")


def taken(store, table, *identities):
    keys = np.full(len(identities), KEY, np.uint64)
    checks = np.array([check for check, _ in identities], np.uint32)
    return store.taken(table, keys, checks, Ragged.of([i for _, i in identities])).tolist()


def refused(store, table="item"):
    return sum(s.refused for s in store.status(table))


def test_a_key_is_taken_by_its_first_id(store):
    begin(store, ITEM)
    assert taken(store, "item", OWNER, OTHER_CHECK, OTHER_BYTES) == [False] * 3
    store.apply("item", flush_of([KEY], 0, 1, gradients=[[1, 1]], identities=[(0, b"")]))
    assert taken(store, "item", OWNER, OTHER_CHECK, OTHER_BYTES) == [False] * 3  # no id has come with it yet
    store.apply("item", flush_of([KEY], 1, 2, counts=[1], identities=[OWNER]))
    assert taken(store, "item", OWNER, OTHER_CHECK, OTHER_BYTES) == [False, True, True]


def test_the_other_ids_part_changes_nothing_and_the_rest_of_the_call_is_applied(store):
    begin(store, ITEM)
    store.apply("item", flush_of([KEY], 0, 1, counts=[1], gradients=[[1, 1]], identities=[OWNER]))
    before = contents(store, "item")[KEY]
    for at, other in enumerate((OTHER_CHECK, OTHER_BYTES), 1):
        flush = flush_of([KEY, at], at, at + 1, counts=[1, 1], gradients=np.ones((2, 2)),
                         identities=[other, (at, str(at).encode())])  # fmt: skip
        assert outcomes(store.apply("item", flush)) == {"applied"}
        assert contents(store, "item")[KEY] == before
        assert store.lookup("item", np.array([at], np.uint64)).count.tolist() == [1]
    assert refused(store) == 2


def test_a_refused_part_is_counted_once_and_the_clock_goes_on(store):
    begin(store, ITEM)
    store.apply("item", flush_of([KEY], 0, 1, counts=[1], gradients=[[1, 1]], identities=[OWNER]))
    before = contents(store, "item")
    flush = flush_of([KEY], 1, 4, counts=[3], gradients=[[1, 1]], identities=[OTHER_CHECK])
    assert outcomes(store.apply("item", flush)) == {"applied"}
    assert outcomes(store.apply("item", flush)) == {"duplicate"}
    assert contents(store, "item") == before
    assert (refused(store), {s.clock for s in store.status("item")}) == (3, {4})


def test_sequences_and_records_refuse_too(store):
    begin(store, TableSpec(name="history", kind="sequence", length=3))
    begin(store, TableSpec(name="catalogue", kind="record", length=9))
    for at, identity in enumerate((OWNER, OTHER_CHECK)):
        entry, value = [(0, at, at, at, 0, 1.0)], [(0, at, at, 0, b"value%d" % at)]
        store.apply("history", flush_of([KEY], at, at + 1, counts=[1], appends=entry, identities=[identity]))
        store.apply("catalogue", flush_of([KEY], at, at + 1, counts=[1], values=value, identities=[identity]))
    keys = np.array([KEY], np.uint64)
    assert store.histories("history", keys).entries["item"].tolist() == [0]
    assert store.values("catalogue", keys).values.tolist() == [b"value0"]
    assert (refused(store, "history"), refused(store, "catalogue")) == (1, 1)
    assert taken(store, "history", OWNER, OTHER_CHECK) == taken(store, "catalogue", OWNER, OTHER_CHECK) == [False, True]


def test_a_count_before_admission_holds_the_key(store):
    begin(store, ITEM.model_copy(update={"admit_after": 2}))
    store.apply("item", flush_of([KEY], 0, 1, counts=[1], identities=[OWNER]))
    assert taken(store, "item", OWNER, OTHER_CHECK) == [False, True]
    store.apply("item", flush_of([KEY], 1, 2, counts=[1], identities=[OTHER_CHECK]))
    assert (contents(store, "item"), refused(store)) == ({}, 1)
    store.apply("item", flush_of([KEY], 2, 3, counts=[1], identities=[OWNER]))
    rows = store.lookup("item", np.array([KEY], np.uint64))
    assert (rows.count.tolist(), rows.check.tolist(), rows.ids.tolist()) == ([2], [7], [b"first"])


def test_only_its_own_tombstone_forgets_a_row_and_then_the_key_is_free(store):
    begin(store, ITEM)
    store.apply("item", flush_of([KEY], 0, 1, counts=[1], identities=[OWNER]))
    before = contents(store, "item")
    store.apply("item", flush_of([], 1, 2, forget=[KEY], forget_orders=[(5, 5, 0)], forget_checks=[8]))
    assert (contents(store, "item"), refused(store)) == (before, 1)
    store.apply("item", flush_of([], 2, 3, forget=[KEY], forget_orders=[(5, 5, 0)], forget_checks=[7]))
    assert contents(store, "item") == {}
    assert taken(store, "item", OTHER_CHECK) == [False]
    store.apply("item", flush_of([KEY], 3, 4, own=[(0, 9, 9, 0)], identities=[OTHER_CHECK]))
    assert store.lookup("item", np.array([KEY], np.uint64)).ids.tolist() == [b"other"]
