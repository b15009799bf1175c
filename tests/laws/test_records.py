"""Record tables: one value per id, that of the newest event, whatever the order in which values come."""

import random

import numpy as np
import pytest

from embedding_store.errors import BadRequest
from embedding_store.spec import TableSpec
from tests.flushes import SOURCE, begin, contents, flush_of, outcomes, whole_state

SPEC = TableSpec(name="catalogue", kind="record", length=40, shards=2)


def read(store, *keys):
    got = store.values("catalogue", np.array(keys, np.uint64))
    return [got.values.at(i) if found else None for i, found in enumerate(got.found)]


@pytest.mark.parametrize("seed", range(4))
def test_the_last_writer_wins_under_any_order_and_split(store, seed):
    rng = random.Random(seed)
    # (key, time, place, partition, value); times collide so that partition and place decide
    writes = [
        (rng.randrange(6), rng.randrange(4), i << 16, rng.randrange(3), rng.randbytes(rng.randrange(40)))
        for i in range(60)
    ]
    begin(store, SPEC)
    rng.shuffle(writes)
    at = 0
    while at < len(writes):
        batch = writes[at : at + rng.randint(1, 9)]
        keys = sorted({w[0] for w in batch})
        values = [(keys.index(w[0]), *w[1:]) for w in batch]
        assert outcomes(store.apply("catalogue", flush_of(keys, at, at + len(batch), values=values))) == {"applied"}
        at += len(batch)
    newest = {w[0]: w for w in sorted(writes, key=lambda w: (w[1], w[3], w[2]))}
    assert read(store, *range(7)) == [newest[k][4] if k in newest else None for k in range(7)]
    got = store.values("catalogue", np.array(sorted(newest), np.uint64))
    assert got.orders.tolist() == [(w[1], w[2], w[3]) for _, w in sorted(newest.items())]


def test_two_values_at_one_place_are_told_apart_by_their_bytes(opener):
    store = opener()
    begin(store, SPEC)
    for at, values in enumerate(([b"b", b"c", b"a"], [b"bb"], [b"d"], [b"a"])):
        flush = flush_of([1, 2], at, at + 1, values=[(0, 5, 5, 0, value) for value in values])
        store.apply("catalogue", flush)
    assert read(store, 1, 2) == [b"d", None]


def test_an_older_value_changes_nothing(store):
    begin(store, SPEC)
    store.apply("catalogue", flush_of([1], 0, 1, values=[(0, 10, 0, 0, b"new")], counts=[1]))
    before = contents(store, "catalogue")
    store.apply("catalogue", flush_of([1, 2], 1, 2, values=[(0, 9, 1, 0, b"old"), (1, 1, 2, 0, b"")]))
    assert contents(store, "catalogue")[1] == before[1]
    assert read(store, 1, 2) == [b"new", b""]
    changes = store.changes("catalogue", None)
    assert sorted(changes.keys.tolist()) == [1, 2]
    assert changes.rows.vectors.shape == (2, 0)


def test_a_forgotten_record_comes_back_by_a_newer_value_only(store):
    begin(store, SPEC)
    store.apply("catalogue", flush_of([1], 0, 1, values=[(0, 10, 0, 0, b"one")], counts=[1]))
    store.apply("catalogue", flush_of([], 1, 2, forget=[1], forget_orders=[(20, 1 << 16, 0)]))
    assert read(store, 1) == [None]
    store.apply("catalogue", flush_of([1], 2, 3, values=[(0, 19, 9, 0, b"late")]))
    assert read(store, 1) == [None]
    store.apply("catalogue", flush_of([1], 3, 4, values=[(0, 21, 9, 0, b"new"), (0, 15, 8, 0, b"late")]))
    assert read(store, 1) == [b"new"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"values": [(0, 1, 1, 0, b"x" * 41)]}, "at most 40 bytes, got 41"),
        ({"values": [(1, 1, 1, 0, b"x")]}, "value_rows index the flush's 1 keys"),
        ({"values": [(0, -1, 1, 0, b"x")]}, "must not be negative"),
        ({"gradients": np.ones((1, 1))}, "holds values: leave gradients out"),
        ({"appends": [(0, 1, 1, 1, 0, 1.0)]}, "holds values: leave appends out"),
    ],
)
def test_bad_values_are_refused(store, change, message):
    begin(store, SPEC)
    before = whole_state(store, "catalogue")
    with pytest.raises(BadRequest, match=message):
        store.apply("catalogue", flush_of([1], 0, 1, **change))
    assert whole_state(store, "catalogue") == before
    assert dict(store.status("catalogue")[0].offsets) == {SOURCE: 0}


def test_columns_and_calls_of_records_are_for_records(store):
    begin(store, SPEC)
    begin(store, TableSpec(name="item", dim=1))
    begin(store, TableSpec(name="history", kind="sequence", length=2))
    for table in ("item", "history"):
        with pytest.raises(BadRequest, match="holds no values"):
            store.apply(table, flush_of([1], 0, 1, values=[(0, 1, 1, 0, b"x")]))
        with pytest.raises(BadRequest, match="is of kind"):
            store.values(table, np.zeros(1, np.uint64))
    with pytest.raises(BadRequest, match=r"read it with values\(\)"):
        store.lookup("catalogue", np.zeros(1, np.uint64))
