"""Indexes move with their rows: a server that fills up, writers that race, whatever they find."""

import threading

import numpy as np
import pytest

from embedding_store.contract import Source
from embedding_store.errors import StoreFull
from embedding_store.eviction import INDEXES
from embedding_store.redis_store.keys import shard_keys
from embedding_store.spec import Adagrad, TableSpec
from tests.flushes import SOURCE, begin, flush_of, outcomes, whole_state
from tests.servers import server_names

STOCK = [pytest.param((name, "stock"), id=name) for name in server_names()]
pytestmark = [
    pytest.mark.servers,
    pytest.mark.parametrize("kind", STOCK, indirect=True),
]  # the module has other indexes

SPEC = TableSpec(name="item", dim=4, shards=2, optimizer=Adagrad(), admit_after=2, max_rows=40, ttl_s=0.05)


def step(n, source=SOURCE, size=30):
    """New keys, keys that are admitted, forgets, and evictions once the table is full."""
    keys = list(range(20 * n, 20 * n + size))
    return flush_of(
        keys, n, n + 1, counts=[1] * size, gradients=np.ones((size, 4)), now_ms=10 * n, source=source,
        forget=[20 * n + 3], forget_orders=[(n, n << 16, 0)],
    )  # fmt: skip


def raw(server):
    """Every index and every row's key, as the server holds them."""
    state = {}
    for shard in range(SPEC.shards):
        keys = shard_keys("item", shard)
        for name in INDEXES:
            state[shard, name] = server.command("ZRANGE", keys.of_index(name).decode(), "0", "-1", "WITHSCORES")
        state[shard, "rows"] = server.command("HLEN", keys.rows.decode())
    return state


def check_indexes(store, server):
    """Each record is in the one index of its standing, and nothing else is."""
    status = store.status("item")
    for shard, of in enumerate(status):
        keys = shard_keys("item", shard)
        sizes = {name: int(server.command("ZCARD", keys.of_index(name).decode()).strip(b":\r\n")) for name in INDEXES}
        records = int(server.command("HLEN", keys.rows.decode()).strip(b":\r\n"))
        assert sizes["updates"] == of.rows <= SPEC.max_rows // SPEC.shards
        assert (sizes["stubs"], sizes["evicted"] + sizes["forgotten"]) == (of.stubs, of.remembered)
        assert sum(sizes.values()) == records
    assert len(store.changes("item", None).keys) == sum(s.rows for s in status)


def test_out_of_memory_in_the_middle_of_evicting_changes_nothing(start, connect):
    server = start()
    store = connect(server.url)
    begin(store, SPEC)
    for n in range(12):
        assert outcomes(store.apply("item", step(n))) == {"applied"}
    assert min(sum(getattr(s, name) for s in store.status("item")) for name in ("evicted", "expired")) > 0
    check_indexes(store, server)
    before = whole_state(store, "item"), raw(server)
    server.command("CONFIG", "SET", "maxmemory", "1")
    with pytest.raises(StoreFull):
        store.apply("item", step(12))
    server.command("CONFIG", "SET", "maxmemory", "0")
    assert (whole_state(store, "item"), raw(server)) == before
    assert outcomes(store.apply("item", step(12))) == {"applied"}
    check_indexes(store, server)


def test_writers_that_race_leave_indexes_and_rows_in_step(start, connect):
    server = start()
    sources = [Source("clicks", p) for p in range(3)]
    begin(connect(server.url), SPEC, *sources)
    faults: list[BaseException] = []

    def write(source: Source) -> None:
        try:
            store = connect(server.url)
            for n in range(25):
                assert outcomes(store.apply("item", step(n, source))) == {"applied"}
        except BaseException as e:
            faults.append(e)
            raise

    threads = [threading.Thread(target=write, args=(source,)) for source in sources]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not faults
    store = connect(server.url)
    check_indexes(store, server)
    assert {s.clock for s in store.status("item")} == {75}


def test_a_plain_table_pays_for_no_index(start, connect):
    server = start()
    store = connect(server.url)
    begin(store, TableSpec(name="item", dim=2, shards=1))
    store.apply("item", flush_of([1, 2], 0, 2, counts=[1, 1], gradients=np.ones((2, 2))))
    keys, absent = shard_keys("item", 0), server.command("EXISTS", "nothing")
    assert [server.command("EXISTS", keys.of_index(name).decode()) for name in INDEXES] == [absent] * 4
