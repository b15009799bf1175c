"""Lookup and histories: pure, deterministic, in the order of the keys."""

import dataclasses

import numpy as np
import pytest

from embedding_store.errors import BadRequest, SpecConflict, UnknownTable
from embedding_store.memory import MemoryStore
from embedding_store.spec import Adagrad, Sgd, TableSpec
from tests.flushes import SOURCE, begin, flush_of, whole_state

SPEC = TableSpec(name="item", dim=5, shards=3, initial_std=0.1, seed=11, optimizer=Adagrad())


def test_lookup_never_writes(store):
    begin(store, SPEC)
    store.apply("item", flush_of([1, 2], 0, 2, gradients=np.ones((2, 5)), counts=[1, 1]))
    before = whole_state(store, "item")
    store.lookup("item", np.arange(100, dtype=np.uint64), with_state=True)
    store.changes("item", None)
    assert whole_state(store, "item") == before


def test_initial_vectors_are_a_function_of_seed_and_key(opener):
    store = opener()
    begin(store, SPEC)
    keys = np.array([3, 1 << 63, 2**64 - 1, 3], np.uint64)
    rows = store.lookup("item", keys, with_state=True)
    again = opener().lookup("item", keys)
    np.testing.assert_array_equal(rows.vectors, again.vectors)
    np.testing.assert_array_equal(rows.vectors[0], rows.vectors[3])
    assert len(np.unique(rows.vectors[:3], axis=0)) == 3
    assert not rows.found.any()
    assert not rows.count.any()
    assert rows.ids.tolist() == [b""] * 4
    assert rows.state is not None
    assert (rows.state == np.float32(0.1)).all()
    reference = MemoryStore()
    reference.create(SPEC)
    np.testing.assert_array_equal(rows.vectors, reference.lookup("item", keys).vectors)
    reference.create(SPEC.model_copy(update={"name": "other", "seed": 12}))
    assert (rows.vectors != reference.lookup("other", keys).vectors).all()


def test_rows_answer_in_the_order_of_the_keys(store):
    begin(store, SPEC)
    keys = list(range(50))
    gradients = np.repeat(np.arange(50, dtype=np.float32)[:, None], 5, 1)
    store.apply("item", flush_of(keys, 0, 50, gradients=gradients, counts=[1] * 50))
    asked = np.array([49, 0, 7, 1000, 7], np.uint64)
    rows = store.lookup("item", asked)
    assert rows.ids.tolist() == [b"49", b"0", b"7", b"", b"7"]
    assert rows.found.tolist() == [True, True, True, False, True]
    assert rows.check.tolist() == [49, 0, 7, 0, 7]
    np.testing.assert_array_equal(rows.vectors[2], rows.vectors[4])
    for name in ("clock", "count", "gap", "vectors", "found"):
        assert getattr(rows, name).flags.c_contiguous


@pytest.mark.parametrize("with_state", [False, True])
def test_histories_and_rows_of_the_same_keys_in_one_call(store, with_state):
    begin(store, SPEC)
    begin(store, TableSpec(name="history", kind="sequence", length=6, shards=2))
    keys = list(range(30))
    store.apply("item", flush_of(keys[10:], 0, 20, gradients=np.ones((20, 5)), counts=[1] * 20))
    appends = [(key, key, key, 7, 0, 1.0) for key in keys[:20]]
    store.apply("history", flush_of(keys[:20], 0, 20, appends=appends, counts=[1] * 20))
    asked = np.array([29, 0, 15, 1000, 15, 3], np.uint64)
    histories, rows = store.histories_and_rows("history", "item", asked, with_state=with_state)
    apart = store.histories("history", asked), store.lookup("item", asked, with_state=with_state, with_ids=False)
    for one, other in zip((histories, rows), apart, strict=True):
        for name in (field.name for field in dataclasses.fields(one) if field.name != "ids"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    assert histories.found.tolist() == [False, True, True, False, True, True]
    assert rows.found.tolist() == [True, False, True, False, True, False]


def test_ids_may_be_left_out(store):
    begin(store, SPEC)
    store.apply("item", flush_of([1, 2], 0, 2, gradients=np.ones((2, 5)), counts=[1, 1]))
    keys = np.array([2, 9, 1], np.uint64)
    whole = store.lookup("item", keys, with_state=True)
    bare = store.lookup("item", keys, with_state=True, with_ids=False)
    assert bare.ids.tolist() == [b""] * 3
    for name in (
        "vectors",
        "state",
        "found",
        "clock",
        "count",
        "updated_ms",
        "last_seen",
        "gap",
        "popularity",
        "check",
    ):
        np.testing.assert_array_equal(getattr(bare, name), getattr(whole, name))


def test_no_keys_is_no_error(store):
    begin(store, SPEC)
    assert store.lookup("item", np.zeros(0, np.uint64)).vectors.shape == (0, 5)
    assert len(store.changes("item", None).keys) == 0


def test_declarations_are_kept_and_compared(opener):
    store = opener()
    begin(store, SPEC)
    store.create(SPEC)
    assert opener().spec("item") == SPEC
    with pytest.raises(SpecConflict, match=r"dim is 5, got 6.*"):
        opener().create(SPEC.model_copy(update={"dim": 6, "optimizer": Sgd()}))
    with pytest.raises(UnknownTable, match="no table 'user'"):
        store.lookup("user", np.zeros(1, np.uint64))


def test_a_key_of_the_wrong_type_is_refused(store):
    begin(store, SPEC)
    with pytest.raises(BadRequest, match="keys must be a 1-d array of uint64, got int64"):
        store.lookup("item", np.zeros(1, np.int64))
    with pytest.raises(BadRequest, match=r"read it with lookup\(\)"):
        store.histories("item", np.zeros(1, np.uint64))


def test_models_are_published(opener):
    store = opener()
    assert store.published_model() is None
    store.publish_model(b"{}")
    store.publish_model(b'{"dim": 3}')
    assert opener().published_model() == b'{"dim": 3}'


def test_status_before_the_first_event(store):
    store.create(SPEC)
    for shard in store.status("item"):
        assert (shard.clock, shard.rows, shard.generation, dict(shard.offsets)) == (0, 0, 0, {})
    store.seek("item", 1, SOURCE, None, 7, "first start")
    assert [dict(s.offsets) for s in store.status("item")] == [{}, {SOURCE: 7}, {}]
