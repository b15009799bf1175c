"""What servers do with shards: files, replicas, DUMP and RESTORE, defragmentation."""

from __future__ import annotations

import struct
import time
from functools import cache

import numpy as np
import pytest
import redis
from redis.exceptions import ResponseError

from tests.native.redis_module.parsers import PAIRS
from tests.native.redis_module.served import STATE, STORED, connected, create, events, info, packed, rows
from tests.native.redis_module.test_saved import LIMITS, calls
from tests.servers import RedisServer, free_port, running, server_names

pytestmark = pytest.mark.servers
FIVE = np.array([1, 2, 3, 2**63, 2**64 - 1], np.uint64)
DEBUG = ("--enable-debug-command", "yes")
KINDS = {
    "plain": {},
    "limited": {"admit_after": "3", "max_stubs": "30"} | LIMITS,
    "adam": {"optimizer": "adam", "l2": "0.01", "step_events": "7"},
    "sequence": {"kind": "sequence", "dim": "0", "length": "4", "optimizer": "add"} | LIMITS,
    "record": {"kind": "record", "dim": "0", "length": "30", "optimizer": "add"},
}


@pytest.fixture(params=server_names())
def server(request, tmp_path, module_options):
    with running(request.param, tmp_path, *module_options(), *DEBUG) as started:
        yield started


@pytest.fixture(scope="module", params=server_names())
def shared(request, tmp_path_factory, module_options):
    """A server that no test restarts."""
    with running(request.param, tmp_path_factory.mktemp("shared"), *module_options(), *DEBUG) as started:
        yield started


def fill(client: redis.Redis, steps: int = 6, keys: int = 90) -> None:
    """A shard of each kind, with what random calls leave in it."""
    for kind, changed in KINDS.items():
        pairs = PAIRS | {"dim": "4"} | changed
        create(client, kind, **changed)
        if not client.execute_command("TOW.INFO", kind)[3]:
            client.execute_command("TOW.SEEK", kind, "another:7", "-", 5, "too")
        state_dim = {"adam": 9}.get(pairs["optimizer"], 0)
        for blob in calls(pairs["kind"], int(pairs["dim"]), state_dim, keys, steps, 3, int(pairs["length"])):
            assert client.execute_command("TOW.APPLY", kind, blob)[0] == 0


def contents(client: redis.Redis) -> dict[str, tuple[object, ...]]:
    """All that can be seen of each shard, but its memory and feed."""
    out = {}
    for kind in KINDS:
        told = info(client, kind)
        del told["memory"]
        digest = client.execute_command("DEBUG", "DIGEST-VALUE", kind)[0]
        out[kind] = (digest, repr(told))
    return out


def wait_for(condition, deadline_s: float = 20) -> None:
    deadline = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def rewritten(client: redis.Redis) -> None:
    client.bgrewriteaof()
    wait_for(lambda: not client.info("persistence")["aof_rewrite_in_progress"]
             and not client.info("persistence")["aof_rewrite_scheduled"])  # fmt: skip
    assert client.info("persistence")["aof_last_bgrewrite_status"] == "ok"


def test_a_snapshot_survives_a_restart(server):
    client = connected(server)
    fill(client)
    before = contents(client)
    assert client.save()
    server.kill()
    server.options = (*server.options, "--dbfilename", "dump.rdb")
    server.start()
    client = connected(server)
    assert contents(client) == before
    feed, *_, keys, _ = client.execute_command("TOW.CHANGES", "plain", 0)
    assert (feed, keys) == (6, None)  # feeds are not saved
    for kind in KINDS:
        applied(client, kind)


def applied(client: redis.Redis, kind: str) -> None:
    """One more call."""
    pairs = PAIRS | {"dim": "4"} | KINDS[kind]
    state_dim = {"adam": 9}.get(pairs["optimizer"], 0)
    blob = calls(pairs["kind"], int(pairs["dim"]), state_dim, 90, 7, 3, int(pairs["length"]))[-1]
    assert client.execute_command("TOW.APPLY", kind, blob)[0] == 0


@pytest.mark.parametrize("preamble", ["yes", "no"])
def test_an_append_only_file_survives_a_restart(server, preamble):
    server.kill()
    server.options = (*server.options, "--appendonly", "yes", "--aof-use-rdb-preamble", preamble)
    server.start()
    client = connected(server)
    fill(client)
    server.kill()
    server.start()  # from commands alone
    client = connected(server)
    rewritten(client)
    for kind in KINDS:
        applied(client, kind)
    big = np.arange(20_000, dtype=np.uint64)  # several blocks
    create(client, "big")
    client.execute_command("TOW.APPLY", "big", events(0, big))
    rewritten(client)
    client.execute_command("TOW.APPLY", "big", events(1, big[:50]))
    before = contents(client), client.execute_command("DEBUG", "DIGEST-VALUE", "big")
    server.kill()
    server.start()
    client = connected(server)
    assert (contents(client), client.execute_command("DEBUG", "DIGEST-VALUE", "big")) == before


def test_an_append_only_file_that_ends_in_a_shard(server):
    server.kill()
    server.options = (*server.options, "--appendonly", "yes", "--aof-use-rdb-preamble", "no")
    server.start()
    client = connected(server)
    create(client, "k")
    client.execute_command("TOW.APPLY", "k", events(0, np.arange(20_000, dtype=np.uint64)))
    rewritten(client)
    server.kill()
    base = next((server.folder / "appendonlydir").glob("*.base.aof"))
    data = base.read_bytes()
    assert data.count(b"TOW.RESTORE") > 3
    base.write_bytes(data[: data.rindex(b"*3\r\n$11\r\nTOW.RESTORE")])
    server.start()
    client = connected(server)
    with pytest.raises(ResponseError, match=r"^TOWNONE"):
        client.execute_command("TOW.INFO", "k")
    rewritten(client)
    assert client.save()
    assert client.memory_usage("k")
    with pytest.raises(ResponseError, match="failed to copy"):
        client.copy("k", "copy")
    restored = client.dump("k")
    client.restore("again", 0, restored)
    with pytest.raises(ResponseError, match=r"^TOWNONE"):
        client.execute_command("TOW.APPLY", "again", events(0, FIVE))
    assert create(client, "k") == b"OK"
    assert client.execute_command("TOW.APPLY", "k", events(0, FIVE))[0] == 0
    assert client.delete("again") == 1


@pytest.mark.parametrize("name", server_names())
def test_a_replica_is_the_same(name, tmp_path, module_options):
    port = free_port()
    (tmp_path / "master").mkdir()
    (tmp_path / "replica").mkdir()
    options = (*module_options(), *DEBUG, "--repl-diskless-sync-delay", "0")
    with running(name, tmp_path / "master", *options, port=port) as master:
        client = connected(master)
        fill(client, steps=6)
        with running(name, tmp_path / "replica", *options, "--replicaof", "127.0.0.1", str(port)) as replica:
            copy = connected(replica)
            wait_for(lambda: copy.info("replication")["master_link_status"] == "up")
            for kind in KINDS:  # refused, repeated and applied calls
                applied(client, kind)
                with pytest.raises(ResponseError):
                    client.execute_command("TOW.APPLY", kind, b"x")
            create(client, "later")
            keys = np.arange(3000, dtype=np.uint64)
            client.execute_command("TOW.APPLY", "later", events(0, keys))
            client.execute_command("TOW.APPLY", "later", events(0, keys))
            client.execute_command("TOW.GENERATION", "later", 3)
            client.execute_command("TOW.SEEK", "later", "t:0", 10, 20, "why")
            client.copy("later", "copied")
            assert client.wait(1, 10_000) == 1
            assert contents(copy) == contents(client)
            for key in ("later", "copied"):
                assert copy.execute_command("DEBUG", "DIGEST-VALUE", key) == client.execute_command(
                    "DEBUG", "DIGEST-VALUE", key
                )
            assert copy.dump("limited") == client.dump("limited")  # its lists have the same order
            assert (
                rows(copy.execute_command("TOW.LOOKUP", "adam", packed(range(50)), STATE | STORED)).rest
                == rows(client.execute_command("TOW.LOOKUP", "adam", packed(range(50)), STATE | STORED)).rest
            )
            with pytest.raises(redis.exceptions.ReadOnlyError):
                copy.execute_command("TOW.APPLY", "later", events(2, FIVE))


@cache
def crc_table() -> list[int]:
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x95AC9329AC4BC9B5 if crc & 1 else 0)
        table.append(crc)
    return table


def sealed(dump: bytes) -> bytes:
    """A DUMP whose content was changed, with the checksum that the server wants."""
    crc = 0
    for byte in dump[:-8]:
        crc = crc_table()[(crc ^ byte) & 0xFF] ^ crc >> 8
    return dump[:-8] + struct.pack("<Q", crc)


def test_dumps_that_were_changed_are_refused(shared):
    client = connected(shared)
    client.flushall()
    client.config_set("rdbcompression", "no")  # bytes where they are
    create(client, "k")
    client.execute_command("TOW.APPLY", "k", events(0, FIVE))
    dump = client.dump("k")
    assert sealed(dump) == dump
    client.restore("again", 0, dump)
    assert client.dump("again") == dump
    start = dump.index(b"TOWS")
    end = dump.rindex(b"\0", 0, len(dump) - 10)
    refusals = 0
    for at in range(start, end):
        changed = bytearray(dump)
        changed[at] ^= 1 << at % 8
        with pytest.raises(ResponseError, match="Bad data format"):
            client.restore("bad", 0, sealed(bytes(changed)))
        refusals += 1
    assert refusals > 800
    log = (shared.folder / "server.log").read_text()
    assert log.count("a towline shard is refused: TOWBAD") >= refusals
    assert "is corrupt: checksum" in log
    assert "format version" in log
    for size in (start + 1, start + 100, end - 1):  # cut; what the server's own frame makes of it is its own
        with pytest.raises(ResponseError):
            client.restore("bad", 0, sealed(dump[:size] + dump[-10:]))
    rng = np.random.default_rng(8)
    for _ in range(300):  # anywhere
        changed = bytearray(dump)
        for at in rng.integers(1, len(dump) - 10, 2):
            changed[at] = rng.integers(256)
        try:
            client.restore("bad", 0, sealed(bytes(changed)))
            client.delete("bad")
        except ResponseError:
            pass
    assert client.ping()
    assert client.dump("again") == dump


def blocks_of(shared: RedisServer, client: redis.Redis) -> bytes:
    """All blocks of the shard `k`, from its DUMP."""
    dump = client.dump("k")
    at, blocks = 0, b""
    while (at := dump.find(b"TOWS", at)) >= 0:
        size = struct.unpack_from("<I", dump, at + 16)[0]
        blocks += dump[at : at + 32 + size]
        at += 32 + size
    return blocks


def test_restore_command(shared):
    client = connected(shared)
    client.flushall()
    client.config_set("rdbcompression", "no")
    create(client, "k")
    client.execute_command("TOW.APPLY", "k", events(0, np.arange(8000, dtype=np.uint64)))
    blocks = blocks_of(shared, client)
    assert blocks.count(b"TOWS") >= 3
    assert client.execute_command("TOW.RESTORE", "again", blocks) == b"OK"
    assert client.dump("again") == client.dump("k")
    with pytest.raises(ResponseError, match=r"^BUSYKEY"):
        client.execute_command("TOW.RESTORE", "again", blocks)
    second = 32 + struct.unpack_from("<I", blocks, 16)[0]
    for payload, sentence in (
        (b"", "a save ends after 0 bytes"), (b"x", "saved block 0 has 1 bytes"), (blocks[:-1], "its head says"),
        (blocks + b"x", "a block of 1 bytes after the end"), (blocks + blocks, "after the end"),
        (blocks[:second], f"a save ends after {second} bytes"), (blocks[second:], "comes where block 0 belongs"),
        (blocks[:100] + b"\xff" + blocks[101:], "is corrupt"), (b"y" * 1000, "does not begin with TOWS"),
        (b"TOWS\x09" + blocks[5:], "saved in format version 9; this module reads 1 to 1"),
    ):  # fmt: skip
        with pytest.raises(ResponseError, match=f"^TOWBAD .*{sentence}"):
            client.execute_command("TOW.RESTORE", "bad", payload)
    assert client.dbsize() == 2
    assert client.execute_command("TOW.APPLY", "again", events(1, FIVE)) == [0, 20, 20]


def offered(client: redis.Redis) -> bool:
    """Needs a jemalloc that the server's authors have changed; packagers build with their own."""
    try:
        return bool(client.config_set("activedefrag", "yes"))
    except ResponseError:
        return False


def test_active_defragmentation(shared):
    """Servers that offer it may move all memory, and every row stays what it was."""
    client = connected(shared)
    client.flushall()
    if "jemalloc" not in client.info("memory")["mem_allocator"] or not offered(client):
        return  # saves.c moves memory as such a server would
    client.config_set("active-defrag-ignore-bytes", 1)
    client.config_set("active-defrag-threshold-lower", 0)
    client.config_set("active-defrag-cycle-min", 20)
    fill(client)
    for k in range(20):
        create(client, f"hole-{k}")
        client.execute_command("TOW.APPLY", f"hole-{k}", events(0, np.arange(500 * k, 500 * k + 900, dtype=np.uint64)))
    before = contents(client)
    hits = client.info("stats")["active_defrag_hits"]
    for k in range(0, 20, 2):
        client.delete(f"hole-{k}")
    deadline = time.monotonic() + 8
    while client.info("stats")["active_defrag_hits"] < hits + 30 and time.monotonic() < deadline:
        client.execute_command("TOW.LOOKUP", "plain", packed(range(200)), STATE)
    assert contents(client) == before
    for kind in KINDS:
        applied(client, kind)
    client.config_set("activedefrag", "no")
