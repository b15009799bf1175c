"""Rows replies, made by a plain writer: struct and joins, field by field."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

import numpy as np
import pytest

from embedding_store.admission import taken_by_others
from embedding_store.errors import StoreMisconfigured
from embedding_store.flush_parts import by_shard
from embedding_store.module_store.rows_blob import STORED, WITH_KEYS, WITH_STATE, block_of, parse_rows
from embedding_store.orders import NO_TIME
from embedding_store.records import histories_of, rows_of, values_of
from embedding_store.spec import Adagrad, Add, TableSpec
from embedding_store.standing import EVICTED, FORGOTTEN, MISSING, ROW, STUB
from native.ragged import Ragged

VECTORS = TableSpec(name="item", dim=3, shards=3, optimizer=Adagrad())
SEQUENCES = TableSpec(name="history", kind="sequence", length=5, shards=3)
RECORDS = TableSpec(name="feature", kind="record", length=300, shards=3)
DENSE = TableSpec(name="tower", kind="dense", dim=7, shards=3, optimizer=Add())
SPECS = [VECTORS, SEQUENCES, RECORDS, DENSE]


@dataclass
class Key:
    """What a shard has of one key."""

    key: int
    standing: int
    numbers: tuple = (0, 0, 0, 0, 0.0, 0.0, 0)
    vector: list = field(default_factory=list)
    state: list = field(default_factory=list)
    place: tuple = (NO_TIME, 0, 0)
    entries: list = field(default_factory=list)
    value: bytes = b""
    id: bytes = b""


def random_key(spec: TableSpec, rng: np.random.Generator, key: int) -> Key:
    standing = int(rng.choice([MISSING, ROW, ROW, ROW, STUB, EVICTED, FORGOTTEN]))
    made = Key(key, standing, vector=rng.random(spec.dim).astype(np.float32).tolist(),
               state=rng.random(spec.state_dim).astype(np.float32).tolist())  # fmt: skip
    if standing in (ROW, STUB):
        made.numbers = (*rng.integers(1, 2**40, 4).tolist(), *rng.random(2).astype(np.float32).tolist(), 77)
    if standing == ROW:
        made.id = rng.bytes(int(rng.integers(0, 20)))
        if spec.kind == "sequence":
            made.entries = [(*rng.integers(0, 2**31, 4).tolist(), 0.5) for _ in range(rng.integers(0, 5))]
        if spec.kind == "record":
            made.value, made.place = rng.bytes(int(rng.integers(0, 300))), (5, 6, 7)
    return made


def blob_of(spec: TableSpec, keys: list[Key], flags: int, head: dict[str, int] | None = None) -> np.ndarray:
    state_dim = spec.state_dim if flags & WITH_STATE else 0
    lengths = [len(k.value) if spec.kind == "record" else len(k.entries) for k in keys]
    fixed = b""
    if flags & WITH_KEYS:
        fixed += b"".join(struct.pack("<Q", k.key) for k in keys)
    for k, length in zip(keys, lengths, strict=True):
        fixed += struct.pack("<4q2fI2H", *k.numbers, length, len(k.id))
    fixed += b"".join(struct.pack(f"<{spec.dim}f", *k.vector) for k in keys)
    if state_dim:
        fixed += b"".join(struct.pack(f"<{state_dim}f", *k.state) for k in keys)
    tail = b""
    if spec.kind == "record":
        tail += b"".join(struct.pack("<qqI", *k.place) for k in keys)
    tail += b"".join(struct.pack("<qqQIf", *entry) for k in keys for entry in k.entries)
    tail += bytes(k.standing for k in keys)
    tail += b"".join(k.value for k in keys) + b"".join(k.id for k in keys)
    told = {"version": 1, "flags": flags, "n": len(keys), "dim": spec.dim, "tail": len(tail), **(head or {})}
    packed = struct.pack(
        "<2I4q4IQ", told["version"], told["flags"], 100, 101, 102, 103, told["n"], told["dim"], state_dim, 0,
        told["tail"],
    )  # fmt: skip
    out = np.frombuffer(packed + fixed + tail, np.uint8).copy()
    out.flags.writeable = False
    return out


def check(spec: TableSpec, keys: list[Key], block, standings, *, with_state: bool) -> None:
    rows = rows_of(block, with_state=with_state)
    is_row = [k.standing == ROW for k in keys]
    assert standings.tolist() == [k.standing for k in keys]
    assert rows.found.tolist() == is_row
    assert rows.vectors.tolist() == [k.vector for k in keys]
    if with_state:
        assert rows.state.shape == (len(keys), spec.state_dim)
        assert rows.state.tolist() == [k.state for k in keys]
    numbers = [k.numbers if k.standing == ROW else (0,) * 7 for k in keys]
    for i, name in enumerate(("clock", "count", "updated_ms", "last_seen", "gap", "popularity", "check")):
        assert getattr(rows, name).tolist() == [n[i] for n in numbers]
    assert rows.ids.tolist() == [k.id for k in keys]
    if spec.kind == "sequence":
        h = histories_of(block)
        assert [h.entries[a:b].tolist() for a, b in zip(h.offsets[:-1], h.offsets[1:], strict=True)] == [
            k.entries for k in keys
        ]
    if spec.kind == "record":
        v = values_of(block)
        assert v.values.tolist() == [k.value for k in keys]
        assert v.orders.tolist() == [k.place for k in keys]
    ids = Ragged.of([k.id if i % 2 else b"another" for i, k in enumerate(keys)])
    checks = np.array([77 if i % 3 else 78 for i in range(len(keys))], np.uint32)
    taken = taken_by_others(block, standings, checks, ids)
    for i, k in enumerate(keys):
        named = len(ids.at(i)) > 0
        stored = k.standing == ROW and len(k.id) > 0
        other = named and stored and (checks[i] != 77 or ids.at(i) != k.id)
        assert taken[i] == (other or (named and k.standing == STUB and checks[i] != 77))


@pytest.mark.parametrize("flags", [0, WITH_STATE, WITH_KEYS | STORED])
@pytest.mark.parametrize("n", [0, 1, 60])
@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.kind)
def test_one_reply_is_its_columns(spec, n, flags):
    rng = np.random.default_rng(n + flags)
    keys = [random_key(spec, rng, int(rng.integers(0, 2**63))) for _ in range(n)]
    blob = blob_of(spec, keys, flags)
    reply = parse_rows(spec, blob, n, flags)
    assert (reply.clock, reply.feed, reply.event_time_ms, reply.produced_ms, len(reply)) == (100, 101, 102, 103, n)
    assert reply.keys.tolist() == ([k.key for k in keys] if flags & WITH_KEYS else [])
    with_state = bool(flags & WITH_STATE)
    for order in (None, np.arange(n)):
        block, standings = block_of(spec, [reply], order, with_state=with_state)
        check(spec, keys, block, standings, with_state=with_state)
        if n and spec.dim:
            assert np.shares_memory(block.vectors, blob)
            assert block.vectors.flags.aligned


@pytest.mark.parametrize("with_state", [False, True])
@pytest.mark.parametrize("n", [0, 1, 80])
@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.kind)
def test_replies_of_shards_come_in_the_order_of_the_keys(spec, n, with_state):
    rng = np.random.default_rng(n)
    keys = [random_key(spec, rng, int(rng.integers(0, 2**63))) for _ in range(n)]
    order, starts = by_shard(np.array([k.key for k in keys], np.uint64), spec.shards)
    flags = WITH_STATE if with_state else 0
    replies = []
    for s in range(spec.shards):
        mine = [keys[i] for i in order[starts[s] : starts[s + 1]]]
        for lo in range(0, len(mine), 7):  # chunks
            part = mine[lo : lo + 7]
            replies.append(parse_rows(spec, blob_of(spec, part, flags), len(part), flags))
    block, standings = block_of(spec, replies, order, with_state=with_state)
    check(spec, keys, block, standings, with_state=with_state)
    in_turn, standings = block_of(spec, replies, with_state=with_state)
    check(spec, [keys[i] for i in order], in_turn, standings, with_state=with_state)
    chosen = np.flatnonzero(in_turn.found)
    assert rows_of(in_turn.at(chosen)).ids.tolist() == [keys[order[i]].id for i in chosen]


@pytest.mark.parametrize(
    ("head", "message"),
    [
        ({"version": 2}, "format version 2, this release reads 1"),
        ({"flags": 4}, "flags 4, dim 3 and state_dim 0, asked for 0, 3 and 0"),
        ({"dim": 4}, "dim 4"),
        ({"n": 7}, "7 rows for 5 keys"),
        ({"tail": 1}, "bytes after the vectors where the head says 1"),
    ],
)
def test_a_reply_of_another_release_is_named(head, message):
    rng = np.random.default_rng(1)
    keys = [random_key(VECTORS, rng, i) for i in range(5)]
    with pytest.raises(StoreMisconfigured, match=message):
        parse_rows(VECTORS, blob_of(VECTORS, keys, 0, head), 5, 0)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.kind)
def test_a_reply_cut_anywhere_is_refused(spec):
    rng = np.random.default_rng(2)
    blob = blob_of(spec, [random_key(spec, rng, i) for i in range(4)], 0)
    parse_rows(spec, blob, 4, 0)
    for size in range(len(blob)):
        with pytest.raises(StoreMisconfigured, match="releases that don't fit"):
            parse_rows(spec, blob[:size], 4, 0)
    with pytest.raises(StoreMisconfigured, match="releases that don't fit"):
        parse_rows(spec, np.append(blob, np.uint8(0)), 4, 0)
