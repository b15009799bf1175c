"""A server that fills up in the middle of a stream: some shards have a call, others not, and none has half of it."""

import numpy as np
import pytest

from embedding_store.errors import StoreFull, StoreMisconfigured
from embedding_store.spec import Add, TableSpec
from tests.flushes import SOURCE, begin, flush_of, outcomes

SPEC = TableSpec(name="item", dim=64, shards=4, optimizer=Add())


def ones(step: int):
    keys = range(500 * step, 500 * (step + 1))
    return flush_of(keys, step, step + 1, gradients=np.ones((500, 64)), counts=[1] * 500)


def consistent(store) -> list[int]:
    """Offsets by shard, each of which must be what the shard's rows say."""
    shards = store.status("item")
    keys = np.arange(60_000, dtype=np.uint64)
    rows = store.lookup("item", keys)
    assert (rows.vectors == rows.count[:, None]).all()
    for step in range(max(s.offsets[SOURCE] for s in shards) + 2):
        found = int(rows.found[500 * step : 500 * (step + 1)].sum())
        assert (found == 0) == all(s.offsets[SOURCE] <= step for s in shards)
        assert (found == 500) == all(s.offsets[SOURCE] > step for s in shards)
    assert sum(s.rows for s in shards) == int(rows.found.sum())
    return [s.offsets[SOURCE] for s in shards]


def applied_until_full(store) -> tuple[int, str]:
    """The step that did not fit, and what was said about it."""
    for step in range(100):
        try:
            assert outcomes(store.apply("item", ones(step))) == {"applied"}
        except StoreFull as full:
            return step, str(full)
    raise AssertionError("8 MB hold 50,000 rows of 64 floats?")


def test_the_call_that_does_not_fit_is_whole_or_absent_in_each_shard(start, connect):
    server = start()
    store = connect(server.url)
    begin(store, SPEC)
    cursor = store.changes("item", None).cursor
    used = int(server.command("INFO", "memory").split(b"used_memory:")[1].split(b"\r\n")[0])
    server.command("CONFIG", "SET", "maxmemory", str(used + 8_000_000))
    step, message = applied_until_full(store)
    assert step > 3
    assert "raise maxmemory, or shrink the tables" in message
    offsets = consistent(store)
    assert set(offsets) <= {step, step + 1}
    server.command("CONFIG", "SET", "maxmemory", "1")
    with pytest.raises(StoreFull):
        store.apply("item", ones(step))
    assert consistent(store) == offsets  # reads go on, of offsets and of the feed too
    assert not store.changes("item", cursor).rescan
    server.command("CONFIG", "SET", "maxmemory", "0")
    assert outcomes(store.apply("item", ones(step))) <= {"applied", "duplicate"}
    assert consistent(store) == [step + 1] * 4


def test_a_policy_that_became_evicting_stops_new_connections(start, connect):
    server = start()
    store = connect(server.url)
    begin(store, SPEC)
    server.command("CONFIG", "SET", "maxmemory-policy", "allkeys-random")
    with pytest.raises(StoreMisconfigured, match=r"maxmemory-policy allkeys-random.*set it to noeviction"):
        connect(server.url)
    server.command("CONFIG", "SET", "maxmemory-policy", "noeviction")
    assert outcomes(connect(server.url).apply("item", ones(0))) == {"applied"}
