"""What breaks around a Redis server, and that it never turns into data."""

import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from embedding_store.errors import StoreFull, StoreMisconfigured, StoreUnavailable
from embedding_store.spec import Adagrad, Add, TableSpec
from tests.flushes import SOURCE, begin, contents, flush_of, outcomes, whole_state

SPEC = TableSpec(name="item", dim=4, shards=2, optimizer=Add())
ONE = np.array([1], np.uint64)


def ones(start: int, keys: int = 20):
    return flush_of(range(keys), start, start + 1, gradients=np.ones((keys, 4)), counts=[1] * keys)


def test_a_server_that_is_gone_is_an_error_and_then_it_is_back(server, connect):
    store = connect(server.url)
    begin(store, SPEC)
    store.apply("item", ones(0))
    before, run = whole_state(store, "item"), store.run_id()
    cursor = store.changes("item", None).cursor
    server.kill()
    for call in (
        lambda: store.lookup("item", ONE),
        lambda: store.apply("item", ones(1)),
        lambda: store.status("item"),
        lambda: store.changes("item", cursor),
        lambda: store.wait_for_changes(["item"], [cursor], 1),
        store.run_id,
        store.generation,
    ):
        with pytest.raises(StoreUnavailable):
            call()
    with pytest.raises(StoreUnavailable):
        connect(server.url)
    server.start()
    assert whole_state(store, "item")[:2] == before[:2]
    assert store.run_id() != run
    assert store.wait_for_changes(["item"], [cursor], 5)
    assert store.changes("item", cursor).rescan
    assert outcomes(store.apply("item", ones(1))) == {"applied"}


def test_idle_connections_survive_a_restart(server, connect):
    store = connect(server.url)
    begin(store, SPEC)
    store.apply("item", ones(0))
    server.kill()
    server.start()
    assert outcomes(store.apply("item", ones(1))) == {"applied"}  # no call failed in between


def test_silence_is_an_error_never_data(server, connect):
    store = connect(server.url, timeout_s=0.3)
    begin(store, SPEC)
    store.apply("item", ones(0))
    server.pause()
    try:
        for call in (lambda: store.lookup("item", ONE), lambda: store.apply("item", ones(1))):
            started = time.monotonic()
            with pytest.raises(StoreUnavailable, match=r"(?i)time"):
                call()
            assert time.monotonic() - started < 3
    finally:
        server.resume()
    # replies of the abandoned calls can't be taken for those of the next
    rows = store.lookup("item", ONE)
    offset = store.status("item")[0].offsets[SOURCE]
    assert rows.vectors.tolist() == [[offset] * 4]
    assert rows.found.all()


def test_out_of_memory_applies_nothing(start, connect):
    server = start()
    store = connect(server.url)
    begin(store, TableSpec(name="item", dim=512, shards=2))
    flush = flush_of(range(300), 0, 1, gradients=np.ones((300, 512)), counts=[1] * 300)
    before = whole_state(store, "item")
    server.command("CONFIG", "SET", "maxmemory", "1")
    with pytest.raises(StoreFull, match="raise maxmemory"):
        store.apply("item", flush)
    assert not store.lookup("item", ONE).found.any()  # reads go on
    server.command("CONFIG", "SET", "maxmemory", "0")
    assert whole_state(store, "item") == before
    assert outcomes(store.apply("item", flush)) == {"applied"}


def test_a_disk_that_cannot_be_written_is_back_pressure(start, connect):
    server = start("--dbfilename", "taken")
    store = connect(server.url)
    begin(store, SPEC)
    before = whole_state(store, "item")
    server.command("CONFIG", "SET", "save", "3600 1000000")
    (server.folder / "taken").mkdir()  # a snapshot can't be renamed onto a folder
    server.command("SET", "x", "1")
    server.command("BGSAVE")
    deadline = time.monotonic() + 10
    while b"rdb_last_bgsave_status:err" not in server.command("INFO", "persistence"):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    with pytest.raises(StoreUnavailable, match="MISCONF"):
        store.apply("item", ones(0))
    server.command("CONFIG", "SET", "stop-writes-on-bgsave-error", "no")
    assert whole_state(store, "item") == before
    assert outcomes(store.apply("item", ones(0))) == {"applied"}


def test_a_replica_is_refused_and_a_demoted_master_drops_the_pool(start, connect):
    server = start()
    store = connect(server.url)
    begin(store, SPEC)
    store.apply("item", ones(0))
    before = whole_state(store, "item")
    server.command("REPLICAOF", "127.0.0.1", "1")
    with pytest.raises(StoreUnavailable, match="ReadOnly"):
        store.apply("item", ones(1))
    with pytest.raises(StoreUnavailable, match="is a replica"):
        store.lookup("item", ONE)
    server.command("REPLICAOF", "NO", "ONE")
    assert whole_state(store, "item") == before
    assert outcomes(store.apply("item", ones(1))) == {"applied"}


def test_an_evicting_server_is_refused(start, connect):
    server = start("--maxmemory-policy", "allkeys-lru")
    with pytest.raises(StoreMisconfigured, match="maxmemory-policy allkeys-lru"):
        connect(server.url)
    # INFO tells it too where CONFIG is forbidden
    server.command("ACL", "SETUSER", "app", "on", ">secret", "~*", "+@all", "-config")
    with pytest.raises(StoreMisconfigured, match="maxmemory-policy allkeys-lru"):
        connect(server.url, username="app", password="secret")


def test_credentials(start, connect):
    server = start("--requirepass", "right")
    for password in ("", "wrong-one"):
        with pytest.raises(StoreMisconfigured) as refused:
            connect(server.url, password=password)
        assert not password or password not in str(refused.value)
    store = connect(server.url, password="right")
    begin(store, SPEC)
    assert outcomes(store.apply("item", ones(0))) == {"applied"}


def test_foreign_data_under_our_keys_is_named(start, connect, backend):
    server = start()
    store = connect(server.url)
    begin(store, SPEC)
    if backend == "module":
        server.command("SET", "towline:{item:1}", "not a shard")
        with pytest.raises(StoreMisconfigured, match=r"shard 1 of table 'item' is damaged, something else writes to"):
            store.apply("item", ones(0))
        return
    server.command("HSET", "towline:{item:0}:rows", "\1\0\0\0\0\0\0\0", "not a record")
    server.command("HSET", "towline:{item:1}:rows", "\1\0\0\0\0\0\0\0", "not a record")
    with pytest.raises(StoreMisconfigured, match=r"row 1 of table 'item' is not a record"):
        store.lookup("item", ONE)


WRITER = """
import sys, numpy as np
from embedding_store.open import open_store
from embedding_store.settings import RedisSettings
from tests.flushes import SOURCE, flush_of
store = open_store(RedisSettings(url=sys.argv[1]))
offset = min(dict(s.offsets)[SOURCE] for s in store.status("item"))
print("ready", flush=True)
while True:
    flush = flush_of(range(400), offset, offset + 1, gradients=np.ones((400, 8)), counts=[1] * 400)
    store.apply("item", flush)
    offset += 1
"""


def test_a_client_killed_in_the_middle_leaves_all_or_nothing(start, connect):
    """kill -9 at random moments; after each, every shard's rows say exactly what its offset says."""
    server = start()
    store = connect(server.url)
    begin(store, TableSpec(name="item", dim=8, shards=2, optimizer=Add()))
    rng = np.random.default_rng(0)
    keys = np.arange(400, dtype=np.uint64)
    moved = 0
    for _ in range(4):
        with subprocess.Popen([sys.executable, "-c", WRITER, server.url], stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"ready\n"
            low = min(s.offsets[SOURCE] for s in store.status("item"))
            deadline = time.monotonic() + 20
            while store.status("item")[0].offsets[SOURCE] < low + 3:
                assert time.monotonic() < deadline
            time.sleep(rng.random() * 0.02)  # not a wait: the moment of death is what is random
            os.kill(writer.pid, signal.SIGKILL)
        rows = store.lookup("item", keys)
        offsets = [s.offsets[SOURCE] for s in store.status("item")]
        assert [s.clock for s in store.status("item")] == offsets
        for counts in (rows.count, *rows.vectors.T):
            assert set(counts.tolist()) <= set(offsets)
        low = min(offsets)
        # the replay of the gap: a duplicate to the shard that has it, applied by the one that has not
        if max(offsets) > low:
            replay = flush_of(range(400), low, low + 1, gradients=np.ones((400, 8)), counts=[1] * 400)
            assert outcomes(store.apply("item", replay)) == {"applied", "duplicate"}
        rows = store.lookup("item", keys)
        moved = max(offsets)
        assert (rows.count == moved).all()
        assert (rows.vectors == moved).all()
    assert moved >= 12


def test_many_writers_queue_and_lose_nothing(start, connect):
    """Four processes on one shard: optimistic attempts abort each other, the lock lets them through in turn."""
    server = start()
    store = connect(server.url)
    spec = begin(
        store,
        TableSpec(name="item", dim=8, shards=1, optimizer=Add()),
        *[SOURCE._replace(partition=p) for p in range(4)],
    )
    code = WRITER.replace("SOURCE, flush_of", "SOURCE as S, flush_of\nSOURCE = S._replace(partition=int(sys.argv[2]))")
    code = code.replace("while True", "while offset < 30").replace(
        "counts=[1] * 400", "counts=[1] * 400, source=SOURCE"
    )
    writers = [
        subprocess.Popen([sys.executable, "-c", code, server.url, str(p)], stdout=subprocess.PIPE) for p in range(4)
    ]
    for writer in writers:
        assert writer.wait(60) == 0
        assert writer.stdout is not None
        writer.stdout.close()
    rows = store.lookup(spec.name, np.arange(400, dtype=np.uint64))
    assert (rows.count == 120).all()
    assert (rows.vectors == 120).all()


def test_rows_move_back_with_offsets_and_feed(start, connect):
    """A server that lost its last second: rows, offsets and clock are of one moment, and the run id tells."""
    server = start("--appendonly", "no", "--dbfilename", "dump.rdb")
    store = connect(server.url)
    begin(store, TableSpec(name="item", dim=4, shards=2, optimizer=Adagrad()))
    store.apply("item", ones(0))
    server.command("SAVE")
    before = contents(store, "item")
    store.apply("item", ones(1))
    cursor = store.changes("item", None).cursor
    server.kill()
    server.start()
    assert contents(store, "item") == before
    assert [s.offsets[SOURCE] for s in store.status("item")] == [1, 1]
    assert store.changes("item", cursor).rescan
    assert outcomes(store.apply("item", ones(2))) == {"conflict"}
    assert outcomes(store.apply("item", ones(1))) == {"applied"}


def test_threads_share_a_store_while_its_server_restarts(server, connect):
    """Calls fail or succeed, none hangs, none reads another's reply; afterwards rows say what the offset says."""
    store = connect(server.url)
    begin(store, SPEC)
    stop = threading.Event()
    wrong: list[object] = []

    def read() -> None:
        while not stop.is_set():
            try:
                vectors = store.lookup("item", np.arange(20, dtype=np.uint64)).vectors
                if not (vectors == vectors[:, :1]).all():
                    wrong.append(vectors)
            except StoreUnavailable:
                pass
            except Exception as e:  # noqa: BLE001 (a thread's failure is told by the assertion below)
                wrong.append(e)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    try:
        for _ in range(3):
            server.kill()
            server.start()
            offset = None
            while offset is None:
                try:
                    offset = min(s.offsets[SOURCE] for s in store.status("item"))
                    assert outcomes(store.apply("item", ones(offset))) == {"applied"}
                except StoreUnavailable:
                    offset = None
    finally:
        stop.set()
        for reader in readers:
            reader.join(30)
    assert not wrong
    assert (store.lookup("item", np.arange(20, dtype=np.uint64)).vectors == 3).all()
