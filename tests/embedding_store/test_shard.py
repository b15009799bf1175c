"""The protocol's decisions, without rows."""

from dataclasses import replace

import numpy as np
import pytest

from embedding_store.contract import Range, Source
from embedding_store.errors import GenerationError, SeekConflict
from embedding_store.eviction import leaving, settle
from embedding_store.flush_parts import parts_of
from embedding_store.merge import merge
from embedding_store.records import Records
from embedding_store.shard import FEED_KEYS, ShardMeta, advance, feed_length, judge, jump
from embedding_store.spec import TableSpec
from tests.flushes import flush_of

A, B = Source("a", 0), Source("b", 1)


@pytest.mark.parametrize(
    ("offsets", "ranges", "outcome"),
    [
        ({A: 5}, [(A, 5, 9)], "applied"),
        ({A: 9}, [(A, 5, 9)], "duplicate"),
        ({A: 12}, [(A, 5, 9)], "duplicate"),
        ({A: 7}, [(A, 5, 9)], "conflict"),
        ({A: 4}, [(A, 5, 9)], "conflict"),
        ({}, [(A, 0, 9)], "conflict"),
        ({A: 5, B: 3}, [(A, 5, 9), (B, 3, 4)], "applied"),
        ({A: 9, B: 3}, [(A, 5, 9), (B, 3, 4)], "conflict"),
        ({A: 9, B: 4}, [(A, 5, 9), (B, 3, 4)], "duplicate"),
        ({A: 5}, [(A, 5, 9), (B, 0, 4)], "conflict"),
        ({A: 9}, [(A, 5, 9), (B, 0, 4)], "conflict"),
    ],
)
def test_judge(offsets, ranges, outcome):
    flush = flush_of([], 0, 1, ranges=tuple(Range(*r) for r in ranges))
    assert judge(ShardMeta(offsets=offsets), flush, "here") == outcome


def test_generations_are_equal_or_refused():
    for generation in (2, 4):
        with pytest.raises(GenerationError, match="here is at store generation 3"):
            judge(ShardMeta(generation=3, offsets={A: 1}), flush_of([], 0, 1, generation=generation), "here")


def settled(changed=()):
    """The effect of a call on nothing, but for what the feed is told."""
    spec = TableSpec(name="item", dim=1, shards=1)
    part = parts_of(spec, flush_of([], 0, 1))[0]
    none = Records.of([])
    merged = merge(spec, part, none, 1, 0)
    whole = settle(spec, merged, leaving(spec, merged, {}, 1, 0), none, 1, 0)
    return replace(whole, changed=np.array(changed, np.uint64))


def test_advance_never_goes_back_in_time():
    meta = ShardMeta(clock=10, event_time_ms=500, produced_ms=600, feed=3, offsets={A: 1, B: 7})
    flush = flush_of([], 1, 5, source=A, events=3)
    after = advance(meta, flush, settled())
    assert (after.clock, after.event_time_ms, after.produced_ms, after.feed) == (13, 500, 600, 3)
    assert after.offsets == {A: 5, B: 7}
    assert advance(meta, flush, settled(changed=[7])).feed == 4


def test_jump_counts_what_it_skips():
    meta = jump(ShardMeta(), A, None, 10, "first start", "here")
    assert (meta.skipped, meta.seeks, meta.offsets) == (0, 1, {A: 10})
    meta = jump(meta, A, 10, 25, "retention", "here")
    assert (meta.skipped, meta.last_seek) == (15, "a:0 10 -> 25: retention")
    meta = jump(meta, A, 25, 20, "the log was truncated", "here")
    assert (meta.skipped, meta.offsets) == (15, {A: 20})
    with pytest.raises(SeekConflict, match="offset of source a:0 in here is 20, expected None"):
        jump(meta, A, None, 1, "x", "here")


def test_the_feed_is_bounded_in_keys():
    assert [feed_length(n) for n in (1, 256, FEED_KEYS // 100, FEED_KEYS)] == [4096, 4096, 100, 4]
