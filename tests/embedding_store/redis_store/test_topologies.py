"""Cluster and Sentinel, with real processes."""

import time

import numpy as np
import pytest

from embedding_store.errors import StoreMisconfigured, StoreUnavailable
from embedding_store.redis_store.client import slot_of
from embedding_store.redis_store.keys import module_key, shard_keys
from embedding_store.spec import Add, TableSpec
from tests.flushes import begin, contents, flush_of, outcomes
from tests.servers import RedisServer, free_port

SPEC = TableSpec(name="item", dim=4, shards=8, optimizer=Add())
DEADLINE_S = 30.0


def names_of(backend: str, shard: int) -> list[str]:
    """Every key of a shard."""
    keys = [module_key("item", shard)] if backend == "module" else shard_keys("item", shard)
    return [key.decode() for key in keys]


def until(condition):
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def ones(start: int, keys: int = 50):
    return flush_of(range(keys), start, start + 1, gradients=np.ones((keys, 4)), counts=[1] * keys)


def node_id(server: RedisServer) -> str:
    return server.command("CLUSTER", "MYID").split(b"\r\n")[1].decode()


@pytest.fixture
def cluster(start):
    bus = [free_port(), free_port()]  # not the default, port + 10000: free ports may be too high for it
    nodes = [start("--cluster-enabled", "yes", "--cluster-port", str(b), port=free_port()) for b in bus]
    nodes[0].command("CLUSTER", "ADDSLOTSRANGE", "0", "8191")
    nodes[1].command("CLUSTER", "ADDSLOTSRANGE", "8192", "16383")
    nodes[0].command("CLUSTER", "MEET", "127.0.0.1", str(nodes[1].port), str(bus[1]))
    until(lambda: all(b"cluster_state:ok" in n.command("CLUSTER", "INFO") for n in nodes))
    until(lambda: all(n.command("CLUSTER", "SLOTS").startswith(b"*2") for n in nodes))
    return nodes


def test_cluster_spreads_shards_and_follows_a_moved_slot(cluster, connect, backend):
    store = connect(cluster[0].url, cluster=True)
    begin(store, SPEC)
    assert outcomes(store.apply("item", ones(0))) == {"applied"}
    cursor = store.changes("item", None).cursor
    sizes = [int(n.command("DBSIZE")[1:].strip()) for n in cluster]
    assert min(sizes) > 0  # both serve shards
    assert not store.wait_for_changes(["item"], [cursor], 0.02)
    assert outcomes(store.apply("item", ones(1))) == {"applied"}
    assert store.wait_for_changes(["item"], [cursor], 10)
    changes = store.changes("item", cursor)
    assert (changes.rescan, len(changes.keys)) == (False, 50)

    # move the slot of one shard to the other node, rows and all
    shard = next(s for s in range(8) if slot_of(shard_keys("item", s).rows) < 8192)
    slot = str(slot_of(shard_keys("item", shard).rows))
    before = contents(store, "item")
    source, target = node_id(cluster[0]), node_id(cluster[1])
    cluster[1].command("CLUSTER", "SETSLOT", slot, "IMPORTING", source)
    cluster[0].command("CLUSTER", "SETSLOT", slot, "MIGRATING", target)
    names = names_of(backend, shard)
    reply = cluster[0].command("MIGRATE", "127.0.0.1", str(cluster[1].port), "", "0", "5000", "KEYS", *names)
    assert reply.startswith(b"+OK")
    for node in (cluster[1], cluster[0]):
        node.command("CLUSTER", "SETSLOT", slot, "NODE", target)
    assert contents(store, "item") == before
    assert outcomes(store.apply("item", ones(2))) == {"applied"}
    assert (store.lookup("item", np.arange(50, dtype=np.uint64)).vectors == 3).all()
    assert store.changes("item", cursor).rescan  # its run ids are others now


def test_apply_itself_follows_a_moved_slot(cluster, connect, backend):
    """The first call after the move is an apply: what had moved is applied once, and nothing twice."""
    store = connect(cluster[0].url, cluster=True)
    begin(store, SPEC)
    store.apply("item", ones(0))
    shard = next(s for s in range(8) if slot_of(shard_keys("item", s).rows) < 8192)
    slot, target = str(slot_of(shard_keys("item", shard).rows)), node_id(cluster[1])
    names = names_of(backend, shard)
    cluster[1].command("CLUSTER", "SETSLOT", slot, "IMPORTING", node_id(cluster[0]))
    cluster[0].command("CLUSTER", "SETSLOT", slot, "MIGRATING", target)
    cluster[0].command("MIGRATE", "127.0.0.1", str(cluster[1].port), "", "0", "5000", "KEYS", *names)
    for node in (cluster[1], cluster[0]):
        node.command("CLUSTER", "SETSLOT", slot, "NODE", target)
    assert outcomes(store.apply("item", ones(1))) == {"applied"}
    assert (store.lookup("item", np.arange(50, dtype=np.uint64)).vectors == 2).all()


def test_a_cluster_without_a_node_is_unavailable(cluster, connect):
    store = connect(cluster[0].url, cluster=True)
    begin(store, SPEC)
    cluster[1].kill()
    with pytest.raises(StoreUnavailable):
        store.apply("item", ones(0))
    with pytest.raises(StoreUnavailable):
        store.lookup("item", np.arange(50, dtype=np.uint64))


def test_sentinel_names_the_master_and_the_next_one(start, connect, tmp_path):
    first, second = start(port=free_port()), start(port=free_port())
    second.command("REPLICAOF", "127.0.0.1", str(first.port))
    conf = tmp_path / "sentinel.conf"
    conf.write_text(
        f"sentinel monitor mymaster 127.0.0.1 {first.port} 1\nsentinel down-after-milliseconds mymaster 60000\n"
    )
    # a Sentinel is the same binary with a file of its own; it doesn't take the options of a data server
    sentinel = _sentinel(first, conf, tmp_path)
    try:
        name = f"127.0.0.1:{sentinel.port}"
        store = connect("", sentinels=(name,))
        begin(store, SPEC)
        store.apply("item", ones(0))
        before = contents(store, "item")
        until(
            lambda: (
                b"slave0" in first.command("INFO", "replication")
                and b"state=online" in first.command("INFO", "replication")
            )
        )
        until(lambda: b"num-slaves\r\n$1\r\n1" in sentinel.command("SENTINEL", "MASTER", "mymaster"))
        until(lambda: sentinel.command("SENTINEL", "FAILOVER", "mymaster").startswith(b"+OK"))
        until(lambda: str(second.port).encode() in sentinel.command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "mymaster"))
        run = None
        deadline = time.monotonic() + DEADLINE_S
        while run is None:
            assert time.monotonic() < deadline
            try:
                run = store.run_id()
                assert outcomes(store.apply("item", ones(1))) == {"applied"}
            except StoreUnavailable:
                run = None
                time.sleep(0.05)
        assert set(contents(store, "item")) == set(before)
        assert b"role:master" in second.command("INFO", "replication")
        with pytest.raises(StoreUnavailable, match="knows no master 'other'"):
            connect("", sentinels=(name,), sentinel_service="other")
    finally:
        sentinel.kill()


def _sentinel(like: RedisServer, conf, folder) -> RedisServer:
    class Sentinel(RedisServer):
        def arguments(self):
            return [
                str(conf),
                "--sentinel",
                "--port",
                str(self.port),
                "--unixsocket",
                self.socket_path,
                "--dir",
                str(folder),
            ]

    server = Sentinel(like.binary, folder, port=free_port())
    server.start()
    return server


def test_settings_that_contradict_each_other(connect):
    with pytest.raises(StoreMisconfigured, match="exclude each other"):
        connect("redis://127.0.0.1:1", cluster=True, sentinels=("127.0.0.1:2",))
    with pytest.raises(StoreMisconfigured, match=r"redis.url is empty"):
        connect("")
    with pytest.raises(StoreMisconfigured, match="must be redis://"):
        connect("http://user:secret@x")
