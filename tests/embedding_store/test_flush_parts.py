"""Parts of a flush, put together again."""

import numpy as np
import pytest

from embedding_store.contract import ENTRY
from embedding_store.flush_parts import by_shard, parts_of
from embedding_store.spec import TableSpec
from embedding_store.validation import checked_flush
from native.mixing import shard_of
from tests.flushes import flush_of


@pytest.mark.parametrize("shards", [1, 4])
def test_parts_hold_every_row_once_in_its_shard(shards):
    spec = TableSpec(name="item", dim=3, shards=shards)
    keys = list(range(40))
    flush = checked_flush(
        spec,
        flush_of(keys, 0, 9, gradients=np.random.default_rng(0).random((40, 3)), counts=[1] * 40, forget=[5, 5, 80]),
    )
    parts = parts_of(spec, flush)
    assert sorted(np.concatenate([p.keys for p in parts]).tolist()) == [*keys, 80]
    assert sorted(np.concatenate([p.keys[p.forget_rows] for p in parts]).tolist()) == [5, 80]
    for shard, part in enumerate(parts):
        assert {int(shard_of(k, shards)) for k in part.keys} <= {shard}
        given = part.keys < 40
        assert [part.ids.at(i) for i in np.flatnonzero(given)] == [str(k).encode() for k in part.keys[given]]
        assert part.gradients is not None
        np.testing.assert_array_equal(part.gradients[given], flush.gradients[part.keys[given].astype(int)])
        assert part.checks[given].tolist() == [int(k) % 97 for k in part.keys[given]]
        assert not part.counts[~given].any()
        assert not part.gradients[~given].any()


@pytest.mark.parametrize("shards", [1, 4])
def test_appends_follow_their_keys(shards):
    spec = TableSpec(name="history", kind="sequence", length=9, shards=shards)
    appends = [(i % 7, i, i, 100 + i % 7, 0, 1.0) for i in range(50)]
    flush = checked_flush(spec, flush_of(range(100, 107), 0, 50, appends=appends))
    got = []
    for part in parts_of(spec, flush):
        entries = part.appends.reshape(-1).view(ENTRY)
        assert part.keys[part.append_rows].tolist() == entries["item"].tolist()
        got += entries["time_ms"].tolist()
    assert sorted(got) == list(range(50))


def test_a_shard_without_rows_gets_an_empty_part():
    spec = TableSpec(name="item", dim=3, shards=64)
    parts = parts_of(spec, checked_flush(spec, flush_of([1], 0, 1, gradients=[[1, 2, 3]])))
    assert (len(parts), sum(len(p.keys) for p in parts)) == (64, 1)
    order, starts = by_shard(np.zeros(0, np.uint64), 3)
    assert (len(order), starts.tolist()) == (0, [0, 0, 0, 0])
