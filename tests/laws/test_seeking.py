"""Seek: a compare-and-set, and the only way to jump."""

import pytest

from embedding_store.errors import BadRequest, SeekConflict
from embedding_store.spec import TableSpec
from tests.flushes import SOURCE, flush_of, outcomes, whole_state

SPEC = TableSpec(name="item", dim=1, shards=2)


def test_an_unset_source_conflicts_until_it_is_set(store):
    store.create(SPEC)
    before = whole_state(store, "item")
    replies = store.apply("item", flush_of([1], 0, 1, gradients=[[1.0]]))
    assert outcomes(replies) == {"conflict"}
    assert all(dict(r.offsets) == {} for r in replies)
    assert whole_state(store, "item") == before
    for shard in range(2):
        store.seek("item", shard, SOURCE, None, 0, "first start")
    assert outcomes(store.apply("item", flush_of([1], 0, 1, gradients=[[1.0]]))) == {"applied"}


def test_seek_compares_before_it_sets(store):
    store.create(SPEC)
    store.seek("item", 0, SOURCE, None, 5, "first start")
    before = whole_state(store, "item")
    for expected in (None, 4, 6):
        with pytest.raises(SeekConflict, match="is 5, expected"):
            store.seek("item", 0, SOURCE, expected, 9, "retention")
    assert whole_state(store, "item") == before
    store.seek("item", 0, SOURCE, 5, 9, "retention")
    one, other = store.status("item")
    assert (dict(one.offsets), one.skipped) == ({SOURCE: 9}, 4)
    assert (dict(other.offsets), other.skipped) == ({}, 0)


def test_seek_is_refused_by_name(store):
    store.create(SPEC)
    for shard, new, reason, message in ((2, 0, "x", "shards 0 to 1, got 2"), (0, -1, "x", "-1"), (0, 0, "", "reason")):
        with pytest.raises(BadRequest, match=message):
            store.seek("item", shard, SOURCE, None, new, reason)
