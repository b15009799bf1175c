"""Every command on every server: what it answers, what it refuses, and that the server lives."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
import redis
from redis.exceptions import ResponseError

from embedding_store.open import open_store
from embedding_store.settings import RedisSettings
from embedding_store.spec import TableSpec
from native.initial import fill_missing
from tests.native.redis_module.blobs import Blob
from tests.native.redis_module.parsers import PAIRS
from tests.native.redis_module.served import KEYS, NO_IDS, STATE, STORED, connected, create, events, info, packed, rows
from tests.servers import running, server_names

pytestmark = pytest.mark.servers
SEQUENCE = {"kind": "sequence", "dim": "0", "length": "3", "optimizer": "add"}
RECORD = SEQUENCE | {"kind": "record"}
FIVE = np.array([1, 2, 3, 2**63, 2**64 - 1], np.uint64)


@pytest.fixture(scope="module", params=server_names())
def server(request, tmp_path_factory, module_options):
    with running(request.param, tmp_path_factory.mktemp("module"), *module_options()) as started:
        yield started


@pytest.fixture
def client(server):
    client = connected(server)
    client.flushall()
    yield client
    assert client.ping()
    assert server.process.poll() is None
    client.close()


def refused(sentence: str):
    return pytest.raises(ResponseError, match=sentence)


def test_create(client):
    assert create(client, "k", 3) == b"OK"
    assert create(client, "k", 9) == b"EXISTS"
    assert info(client, "k")["generation"] == 3
    with refused("^TOWSPEC stored with another declaration: dim is 4, given 8; optimizer is sgd, given adam$"):
        create(client, "k", dim="8", optimizer="adam")
    with refused("^TOWBAD unknown name 'dims' .* the nearest is 'dim'"):
        client.execute_command("TOW.CREATE", "new", 0, "dims", "4")
    with refused("^TOWBAD generation must be a whole number in .*, got 'x'"):
        client.execute_command("TOW.CREATE", "new", "x", "dim", "4")
    with refused("^TOWBAD generation must be .*, got '-1'"):
        client.execute_command("TOW.CREATE", "new", "-1", "dim", "4")
    with refused("^TOWBAD 65 names in a declaration; at most 64"):
        client.execute_command("TOW.CREATE", "new", 0, *["dim", "4"] * 65)
    for words in ((), ("k",), ("k", 0), ("k", 0, "dim"), ("k", 0, "dim", 4, "length")):
        with refused("wrong number of arguments"):
            client.execute_command("TOW.CREATE", *words)
    client.set("text", "x")
    with refused("^WRONGTYPE"):
        create(client, "text")
    assert client.keys() == [b"k", b"text"] or client.keys() == [b"text", b"k"]


COMMANDS = {
    "TOW.LOOKUP": (packed([1]), 0), "TOW.APPLY": (events(0, FIVE),), "TOW.CHANGES": (0,), "TOW.SCAN": (0, 10),
    "TOW.INFO": (), "TOW.SEEK": ("t:0", "-", 5, "why"), "TOW.GENERATION": (5,),
}  # fmt: skip


@pytest.mark.parametrize("name", COMMANDS)
def test_no_key_and_another_type(client, name):
    with refused("^TOWNONE no shard under key 'none'; TOW.CREATE makes one"):
        client.execute_command(name, "none", *COMMANDS[name])
    client.rpush("list", 1)
    with refused("^WRONGTYPE"):
        client.execute_command(name, "list", *COMMANDS[name])
    for words in (COMMANDS[name][:-1], (*COMMANDS[name], 1, 1)):
        if len(words) != len(COMMANDS[name]):
            with refused("wrong number of arguments"):
                client.execute_command(name, *(["list"] if COMMANDS[name] else []), *words)
    assert client.dbsize() == 1


def test_lookup(client):
    create(client, "k", optimizer="adagrad")
    assert client.execute_command("TOW.APPLY", "k", events(0, FIVE, state_dim=4)) == [0, 10, 10]
    asked = np.array([3, 7, 2**64 - 1, 3], np.uint64)
    got = rows(client.execute_command("TOW.LOOKUP", "k", packed(asked), STATE | KEYS))
    assert got.standings.tolist() == [1, 0, 1, 1]
    assert got.keys.tolist() == asked.tolist()
    assert got.records["count"].tolist() == [1, 0, 1, 1]
    assert got.rest == b"id-3" + b"id-%d" % (2**64 - 1) + b"id-3"
    missing = np.empty((1, 4), np.float32)
    fill_missing(7, 0.1, asked[1:2], np.zeros(1, np.bool_), missing)
    assert (got.vectors[1] == missing[0]).all()
    assert (got.vectors[0] == got.vectors[3]).all()
    assert (got.state.reshape(4, 4)[1] == np.float32(0.1)).all()
    assert (got.head["clock"], got.head["feed"], got.head["event_time_ms"]) == (10, 1, 1000)
    bare = rows(client.execute_command("TOW.LOOKUP", "k", packed(asked), NO_IDS))
    assert (bare.rest, bare.records["id_len"].tolist()) == (b"", [0] * 4)
    assert (bare.vectors == got.vectors).all()
    assert rows(client.execute_command("TOW.LOOKUP", "k", b"", 0)).head["n"] == 0
    with refused("^TOWBAD keys of 7 bytes; each has 8"):
        client.execute_command("TOW.LOOKUP", "k", b"1234567", 0)
    with refused(r"^TOWBAD flags must be a whole number in \[0, 15\], got '16'"):
        client.execute_command("TOW.LOOKUP", "k", b"12345678", 16)
    many = client.execute_command("TOW.LOOKUP", "k", bytes(8 << 20), 0)
    assert rows(many).head["n"] == 1 << 20


def test_ten_million_keys(client):
    create(client, "k")
    with refused("^TOWBAD 10000000 keys in one call; at most 1048576"):
        client.execute_command("TOW.LOOKUP", "k", bytes(80_000_000), 0)
    with refused("^TOWBAD 10000000 keys in one call; at most 1048576"):
        client.execute_command("TOW.APPLY", "k", Blob(head={"keys": 10_000_000}, dim=4).bytes() + bytes(80_000_000))
    with refused(r"^TOWBAD count must be a whole number in \[1, 65536\], got '10000000'"):
        client.execute_command("TOW.SCAN", "k", 0, 10_000_000)
    assert info(client, "k")["clock"] == 0


def test_a_reply_that_would_be_too_large(client):
    create(client, "k", dim="4096")
    with refused(r"^TOWBAD a reply of \d{10} bytes to 100000 keys; at most 536870912, ask for fewer keys"):
        client.execute_command("TOW.LOOKUP", "k", packed(range(100_000)), 0)


def test_apply(client):
    create(client, "k", 7)
    call = events(0, FIVE, generation=7)
    assert client.execute_command("TOW.APPLY", "k", call) == [0, 10, 10]
    digest = client.dump("k")
    assert client.execute_command("TOW.APPLY", "k", call) == [1, 10, 10]
    assert client.execute_command("TOW.APPLY", "k", events(2, FIVE, generation=7)) == [2, 10, 10]
    two = Blob(ranges=[(b"t:1", 0, 5), (b"t:0", 10, 20)], generation=7, dim=4).bytes()
    assert client.execute_command("TOW.APPLY", "k", two) == [2, 10, None, 10]
    with refused("^TOWGEN stored 7 given 6$"):
        client.execute_command("TOW.APPLY", "k", events(1, FIVE, generation=6))
    with refused("^TOWBAD the table has dim 4 and state_dim 0, the call is for 3 and 0"):
        client.execute_command("TOW.APPLY", "k", events(1, FIVE, dim=3, generation=7))
    good = events(1, FIVE, generation=7)
    for size in (0, 1, 111, 112, 113, len(good) - 1):
        with refused(rf"^TOWBAD .*{size}"):
            client.execute_command("TOW.APPLY", "k", good[:size])
    with refused("^TOWBAD the call's columns take"):
        client.execute_command("TOW.APPLY", "k", good + b"x")
    assert client.dump("k") == digest
    assert client.execute_command("TOW.APPLY", "k", good) == [0, 20, 20]


@pytest.mark.parametrize(
    ("table", "carried", "sentence"),
    [
        ({}, {"dim": 4, "appends": [(0, (1, 1, 1, 1, 1.0))]}, "TOWKIND a table of kind embedding takes no appends"),
        ({"kind": "dense"}, {"dim": 4, "values": [(0, (1, 1, 1), b"x")]}, "TOWKIND .* dense takes no values, .* has 1"),
        (SEQUENCE, {"values": [(0, (1, 1, 1), b"x")]}, "TOWKIND a table of kind sequence takes no values"),
        (SEQUENCE, {"gradients": np.zeros((2, 0))}, "TOWKIND a table of kind sequence has no vectors: flags 0x1"),
        (RECORD, {"deltas": True}, "TOWKIND a table of kind record has no vectors: flags 0x2"),
        (RECORD, {"appends": [(0, (1, 1, 1, 1, 1.0))]}, "TOWKIND a table of kind record takes no appends"),
        (RECORD, {"values": [(0, (1, 1, 1), b"xxxx")]}, "TOWBAD value 0 has 4 bytes; the table keeps at most 3"),
        ({"optimizer": "adam"}, {"dim": 4, "state_dim": 9, "deltas": True}, "TOWBAD flags 0x2: optimizer adam"),
        ({}, {"dim": 4, "keys": [5, 5]}, "TOWBAD key 5 comes twice"),
        ({}, {"dim": 4, "own": [(0, (1, 1, 1), 1.0)] * 2}, "TOWBAD key 0 has 2 places of own events, but a count of 1"),
    ],
)
def test_what_a_table_does_not_take(client, table, carried, sentence):
    create(client, "k", **table)
    with refused(f"^{sentence}"):
        client.execute_command("TOW.APPLY", "k", Blob(**({"keys": [1, 2], "counts": [1, 1]} | carried)).bytes())
    assert (info(client, "k")["clock"], info(client, "k")["rows"]) == (0, 0)


def test_rows_without_what_their_table_is_for(client):
    """Own events alone make rows of sequence and record tables."""
    for name, table in (("s", SEQUENCE), ("r", RECORD)):
        create(client, name, **table)
        assert client.execute_command("TOW.APPLY", name, Blob(keys=[1, 2], counts=[1, 2]).bytes())[0] == 0
        got = rows(client.execute_command("TOW.LOOKUP", name, packed([1]), 0), places=int(name == "r"))
        assert (got.records["count"].tolist(), got.records["entries"].tolist()) == ([1], [0])
        assert client.copy(name, "copy", replace=True)
        assert client.dump("copy") == client.dump(name)


def test_only_what_was_applied_is_a_change(client):
    """WATCH is how a client sees what the server takes for a modification."""
    create(client, "k")
    client.execute_command("TOW.APPLY", "k", events(0, FIVE))

    def touched(*words: object) -> bool:
        with client.pipeline() as watching:
            watching.watch("k")
            watching.execute_command(*words)
            watching.multi()
            watching.ping()
            try:
                watching.execute()
            except redis.WatchError:
                return True
        return False

    assert not touched("TOW.APPLY", "k", events(0, FIVE))
    assert not touched("TOW.GENERATION", "k", 0)
    assert not touched("TOW.LOOKUP", "k", packed([1]), 0)
    assert touched("TOW.APPLY", "k", events(1, FIVE))
    assert touched("TOW.GENERATION", "k", 1)
    assert touched("TOW.SEEK", "k", "t:0", 20, 30, "why")


def test_changes(client):
    create(client, "k")
    assert client.execute_command("TOW.CHANGES", "k", 0)[:5] == [0, 0, 0, 0, b""]
    client.execute_command("TOW.APPLY", "k", events(0, FIVE[:2]))
    client.execute_command("TOW.APPLY", "k", events(1, FIVE[1:]))
    feed, clock, event_time_ms, produced_ms, keys, reply = client.execute_command("TOW.CHANGES", "k", 0)
    assert (feed, clock, event_time_ms, produced_ms) == (2, 20, 1000, 2000)
    assert np.frombuffer(keys, np.uint64).tolist() == FIVE.tolist()
    got = rows(reply)
    assert (got.head["flags"], got.records["count"].tolist()) == (STORED, [1, 2, 1, 1, 1])
    assert np.frombuffer(client.execute_command("TOW.CHANGES", "k", 1)[4], np.uint64).tolist() == FIVE[1:].tolist()
    assert client.execute_command("TOW.CHANGES", "k", 2)[4] == b""
    assert client.execute_command("TOW.CHANGES", "k", 2**63 - 1)[4:] == [None, None]
    with refused("^TOWBAD since must be .*, got '-1'"):
        client.execute_command("TOW.CHANGES", "k", -1)
    many = np.arange(10, 10 + 4097, dtype=np.uint64)
    client.execute_command("TOW.APPLY", "k", events(2, many))
    *_, keys, reply = client.execute_command("TOW.CHANGES", "k", 2)
    assert (len(keys), reply) == (8 * 4097, None)


def test_scan(client):
    create(client, "k", optimizer="adagrad")
    keys = np.random.default_rng(4).integers(0, 2**64, 3000, np.uint64)
    client.execute_command("TOW.APPLY", "k", events(0, keys, state_dim=4))
    named: list[int] = []
    cursor, calls = b"0", 0
    while calls == 0 or cursor != b"0":
        cursor, reply = client.execute_command("TOW.SCAN", "k", cursor, 700)
        got = rows(reply)
        assert got.head["flags"] == KEYS | STORED
        assert (got.standings == 1).all()
        named += got.keys.tolist()
        calls += 1
    assert sorted(named) == sorted(keys.tolist())
    assert 5 <= calls <= 7
    _, reply = client.execute_command("TOW.SCAN", "k", 0, 5, STATE | KEYS)
    assert len(rows(reply).state) == 20
    for words, sentence in (
        ((-1, 5), "cursor .* got '-1'"), ((2**33, 5), "cursor .* got '8589934592'"), ((0, 0), "count .* got '0'"),
        ((0, 5, 16), "flags .* got '16'"),
    ):  # fmt: skip
        with refused(f"^TOWBAD {sentence}"):
            client.execute_command("TOW.SCAN", "k", *words)
    for cursor in (1, 4095, 4096, 4097, 2**20, 2**32 - 1, 2**32, 2**33 - 1):  # nobody was given these
        client.execute_command("TOW.SCAN", "k", cursor, 10)


def test_seek_generation_info(client):
    create(client, "k", 2)
    client.execute_command("TOW.APPLY", "k", events(0, FIVE, generation=2))
    assert client.execute_command("TOW.SEEK", "k", "topic:with:colons:3", "-", 7, "a new partition") == b"OK"
    assert client.execute_command("TOW.SEEK", "k", "t:0", 10, 100, "lost: retention") == b"OK"
    with refused("^TOWSEEK offset of t:0 is 100, expected unset"):
        client.execute_command("TOW.SEEK", "k", "t:0", "-", 1, "x")
    with refused("^TOWSEEK offset of new is unset, expected 3"):
        client.execute_command("TOW.SEEK", "k", "new", 3, 1, "x")
    for words, sentence in (
        (("", "-", 1, "x"), "a source of 0 bytes; 1 to 600"), (("s" * 601, "-", 1, "x"), "a source of 601 bytes"),
        (("s", "x", 1, "x"), "expected must .* got 'x'"), (("s", "-", -1, "x"), "new must .* got '-1'"),
    ):  # fmt: skip
        with refused(f"^TOWBAD {sentence}"):
            client.execute_command("TOW.SEEK", "k", *words)
    assert client.execute_command("TOW.GENERATION", "k", 1) == 2
    assert client.execute_command("TOW.GENERATION", "k", 9) == 9
    told = info(client, "k")
    assert told["offsets"] == [b"t:0", 100, b"topic:with:colons:3", 7]
    assert told["last_seek"] == b"t:0 10 -> 100: lost: retention"
    assert told["declaration"] == PAIRS["declaration"].encode()
    numbers = {
        "generation": 9, "clock": 10, "event_time_ms": 1000, "produced_ms": 2000, "skipped": 90, "seeks": 3,
        "now_ms": 0, "evicted": 0, "expired": 0, "forgotten": 0, "late": 0, "refused": 0, "feed": 9 << 40, "rows": 5,
        "stubs": 0, "remembered": 0,
    }  # fmt: skip
    assert {name: told[name] for name in numbers} == numbers
    assert told.keys() - numbers.keys() == {"memory", "last_seek", "declaration", "offsets"}
    for at, reason in enumerate(("r" * 5000, "ö" * 600, "r" + "ö" * 600), 100):
        client.execute_command("TOW.SEEK", "k", "t:0", at, at + 1, reason)
        kept = info(client, "k")["last_seek"].decode().removeprefix(f"t:0 {at} -> {at + 1}: ")  # cut between characters
        assert reason.startswith(kept)
        assert 900 < len(kept.encode()) < 1024


def waited(server, *words: object) -> tuple[threading.Thread, list[object]]:
    """TOW.WAIT on a connection of its own; returns once it is blocked."""
    answers: list[object] = []

    def wait() -> None:
        with connected(server) as waiting:
            answers.append(waiting.execute_command("TOW.WAIT", *words))

    thread = threading.Thread(target=wait)
    thread.start()
    with connected(server) as watching:
        deadline = time.monotonic() + 10
        while not watching.info("clients")["blocked_clients"]:
            assert time.monotonic() < deadline
    return thread, answers


def test_wait_ends_when_a_feed_moves(client, server):
    create(client, "a")
    create(client, "b")
    thread, answers = waited(server, 15_000, "a", 0, "b", 0)
    client.execute_command("TOW.APPLY", "b", Blob(ranges=[(b"t:0", 0, 10)], dim=4).bytes())  # applied, no key changed
    assert client.info("clients")["blocked_clients"] == 1
    client.execute_command("TOW.APPLY", "b", events(1, FIVE))
    thread.join(10)
    assert answers == [1]


@pytest.mark.parametrize("words", [("DEL", "a"), ("UNLINK", "a"), ("RENAME", "a", "z"), ("FLUSHALL",)])
def test_wait_ends_when_a_key_goes(client, server, words):
    """At once where the server tells the module, from 7.2 on; else when the time is over."""
    create(client, "a")
    tells = client.info("server")["redis_version"] >= "7.2"
    thread, answers = waited(server, 15_000 if tells else 500, "a", 0)
    client.execute_command(*words)
    thread.join(10)
    assert answers == [1]


def test_wait_at_once(client):
    create(client, "a")
    client.execute_command("TOW.APPLY", "a", events(0, FIVE))
    assert client.execute_command("TOW.WAIT", 10_000, "a", 0) == 1
    assert client.execute_command("TOW.WAIT", 10_000, "a", 7) == 1  # the feed went back
    assert client.execute_command("TOW.WAIT", 10_000, "a", 1, "none", 0) == 1
    assert client.execute_command("TOW.WAIT", 20, "a", 1) == 0
    assert client.execute_command("TOW.WAIT", 0, "a", 1) == 0
    with client.pipeline(transaction=True) as transaction:
        transaction.execute_command("TOW.WAIT", 10_000, "a", 1)
        transaction.execute_command("TOW.WAIT", 10_000, "a", 0)
        assert transaction.execute() == [0, 1]
    assert client.eval("return redis.call('TOW.WAIT', 10000, KEYS[1], 1)", 1, "a") == 0
    for words, sentence in (
        (("x", "a", 0), "^TOWBAD timeout_ms must .* got 'x'"), ((-1, "a", 0), "^TOWBAD timeout_ms must .* got '-1'"),
        ((1, "a", "x"), "^TOWBAD position must .* got 'x'"), ((1,), "wrong number"), ((1, "a"), "wrong number"),
        ((1, "a", 0, "b"), "wrong number"), ((1, *["a", 0] * 4097), "^TOWBAD 4097 keys to wait for; at most 4096"),
    ):  # fmt: skip
        with refused(sentence):
            client.execute_command("TOW.WAIT", *words)


def test_where_the_keys_are(client):
    """For Cluster, and for ACL key patterns."""
    assert client.execute_command("COMMAND GETKEYS", "TOW.WAIT", 5, "a", 1, "b", 2) == ["a", "b"]
    for name, words in COMMANDS.items():
        assert client.execute_command("COMMAND GETKEYS", name, "key", *words) == ["key"]
    assert client.execute_command("COMMAND GETKEYS", "TOW.CREATE", "key", 0, "dim", 1) == ["key"]
    assert client.execute_command("COMMAND GETKEYS", "TOW.RESTORE", "key", "x") == ["key"]


def test_a_reader_can_not_write(client, server):
    create(client, "k")
    readers = ["+tow.lookup", "+tow.changes", "+tow.scan", "+tow.info", "+tow.wait"]
    if "tow.lookup" in map(bytes.decode, client.execute_command("ACL", "CAT", "read")):
        readers = ["+@read"]  # servers from 7.2 on
    client.execute_command("ACL", "SETUSER", "reader", "reset", "on", "nopass", "~k*", *readers)
    with connected(server, username="reader", password="") as reader:
        info(reader, "k")
        reader.execute_command("TOW.LOOKUP", "k", packed([1]), 0)
        reader.execute_command("TOW.WAIT", 0, "k", 0)
        for name in ("TOW.APPLY", "TOW.SEEK", "TOW.GENERATION"):
            with pytest.raises(redis.exceptions.NoPermissionError):
                reader.execute_command(name, "k", *COMMANDS[name])
        for words in (("TOW.CREATE", "k", 0, "dim", 4), ("TOW.RESTORE", "k", "x"), ("TOW.HISTOGRAM",)):
            with pytest.raises(redis.exceptions.NoPermissionError):
                reader.execute_command(*words)
        with pytest.raises(redis.exceptions.NoPermissionError):
            reader.execute_command("TOW.LOOKUP", "other", packed([1]), 0)
    client.execute_command("ACL", "DELUSER", "reader")


def test_above_maxmemory(client):
    create(client, "k")
    client.execute_command("TOW.APPLY", "k", events(0, FIVE))
    dump = client.dump("k")
    client.config_set("maxmemory", 1_000_000)
    try:
        with refused("^(OOM )?command not allowed when used memory > 'maxmemory'"):
            client.execute_command("TOW.APPLY", "k", events(1, FIVE))
        with refused("command not allowed"):
            create(client, "another")
        assert client.dump("k") == dump
        assert client.execute_command("TOW.SEEK", "k", "t:0", 10, 20, "no more is stored for it") == b"OK"
    finally:
        client.config_set("maxmemory", 0)


def test_memory_copy_and_lazy_free(client):
    create(client, "k")
    before = client.memory_usage("k")
    keys = np.arange(20_000, dtype=np.uint64)
    client.execute_command("TOW.APPLY", "k", events(0, keys))
    payload = 20_000 * (64 + 16 + 16)
    assert payload < client.memory_usage("k") - before < 1.6 * payload
    assert abs(info(client, "k")["memory"] - client.memory_usage("k")) < 200
    assert client.copy("k", "copy")
    assert sorted_rows(client, "copy") == sorted_rows(client, "k")
    client.execute_command("TOW.APPLY", "copy", events(1, FIVE))
    assert (info(client, "k")["clock"], info(client, "copy")["clock"]) == (10, 20)
    freed = client.info("memory")["lazyfreed_objects"]
    client.unlink("copy")
    client.flushall(asynchronous=True)
    deadline = time.monotonic() + 10
    while client.info("memory")["lazyfreed_objects"] < freed + 2:
        assert time.monotonic() < deadline
    assert client.dbsize() == 0


def sorted_rows(client, key: str) -> list[tuple[int, bytes, bytes]]:
    _, reply = client.execute_command("TOW.SCAN", key, 0, 65536, STATE | STORED | KEYS)
    got = rows(reply)
    columns = zip(got.keys.tolist(), got.vectors, got.records, strict=True)
    return sorted((key, vector.tobytes(), record.tobytes()) for key, vector, record in columns)


def test_histogram(client):
    create(client, "k")
    client.execute_command("TOW.HISTOGRAM", "RESET")
    client.execute_command("TOW.LOOKUP", "k", packed([1]), 0)
    assert not any(calls for _, calls, *_ in client.execute_command("TOW.HISTOGRAM"))
    assert client.execute_command("TOW.HISTOGRAM", "ON") == b"OK"
    for size in (1, 100, 50_000):
        client.execute_command("TOW.LOOKUP", "k", packed(range(size)), 0)
    told = {name: rest for name, *rest in client.execute_command("TOW.HISTOGRAM")}
    calls, longest_ns, buckets = told[b"tow.lookup"]
    assert (calls, sum(buckets), len(buckets)) == (3, 3, 32)
    top = max(k for k, n in enumerate(buckets) if n)
    assert 2 ** (top - 1) <= longest_ns / 1000 < 2**top
    client.execute_command("TOW.HISTOGRAM", "RESET")
    client.execute_command("TOW.HISTOGRAM", "OFF")
    with refused("^TOWBAD 'off' is none of ON, OFF, RESET"):
        client.execute_command("TOW.HISTOGRAM", "off")
    with refused("wrong number"):
        client.execute_command("TOW.HISTOGRAM", "ON", "OFF")


@pytest.mark.parametrize(
    ("arguments", "got"), [(["argument"], "got 1: argument"), (["huge-pages", "huge-pages"], "got 2: huge-pages")]
)
def test_the_module_takes_no_other_arguments(client, tmp_path, module_options, request, arguments, got):
    name = request.node.callspec.params["server"]
    with (
        pytest.raises(AssertionError, match=f"the module towline takes one argument at most, huge-pages, {got}"),
        running(name, tmp_path, *module_options(), *arguments),
    ):
        pass


def test_the_module_is_loaded_with_huge_pages(client, tmp_path, module_options, request):
    name = request.node.callspec.params["server"]
    with running(name, tmp_path, *module_options(), "huge-pages") as server:
        store = open_store(RedisSettings(url=server.url, backend="module"))
        store.create(TableSpec(name="item", dim=4, shards=1))
        assert store.status("item")[0].rows == 0
        store.close()
