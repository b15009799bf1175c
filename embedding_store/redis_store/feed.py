"""Reading a table's change feed, and scanning it where the feed doesn't reach back."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from embedding_store.change_set import change_set, positions, reaches_back
from embedding_store.contract import U64, Changes, Cursor
from embedding_store.records import Records, decode
from embedding_store.redis_store import shard_meta
from embedding_store.redis_store.client import Wire
from embedding_store.redis_store.keys import ShardKeys, shard_keys
from embedding_store.redis_store.replies import RowReplies, row_bytes
from embedding_store.redis_store.resp import chunks, hmget, pack
from embedding_store.redis_store.session import Session, table_run
from embedding_store.redis_store.steady import steady_reads
from embedding_store.shard import ShardMeta
from embedding_store.spec import TableSpec

SCAN_COUNT = 4096
"""Rows per HSCAN call: a few milliseconds of the server's time."""


def read_changes(session: Session, spec: TableSpec, cursor: Cursor | None) -> Changes:
    """As `EmbeddingStore.changes`. Feed positions are read before rows: what moves in between is named again."""
    shards = [shard_keys(spec.name, s) for s in range(spec.shards)]
    wires = [session.shared(keys.feed) for keys in shards]
    run = table_run([wire.run_id for wire in wires])
    at = positions(spec, run, cursor)
    if at is None:
        return _scan(spec, run, shards, wires)
    commands = [
        [
            pack("XRANGE", keys.feed, "-", "+", "COUNT", 1),
            pack("XRANGE", keys.feed, f"({position}-0", "+"),
            pack("HMGET", keys.meta, *shard_meta.NUMBERS),
        ]
        for keys, position in zip(shards, at, strict=True)
    ]
    metas: list[ShardMeta] = []
    named: list[U64] = []
    whole = True
    replies = steady_reads(shards, wires, commands)
    for (first, entries, numbers), position in zip(replies, at, strict=True):
        metas.append(shard_meta.from_values(numbers, []))
        oldest = int(first[0][0].split(b"-")[0]) if first else None
        whole &= reaches_back(position, oldest, metas[-1].feed)
        blob = b"".join(fields[1] for _, fields in entries)
        named.append(np.unique(np.frombuffer(blob, "<u8")))
    if not whole:
        return _scan(spec, run, shards, wires)
    keys = np.concatenate(named)
    block = decode(spec, keys, read_rows(spec, shards, wires, named), with_state=False)
    return change_set(spec, run, metas, keys, block, rescan=False)


def read_rows(
    spec: TableSpec,
    shards: Sequence[ShardKeys],
    wires: Sequence[Wire],
    keys: Sequence[U64],
    clocks: list[int] | None = None,
) -> Records:
    """Records of each shard's keys, shard by shard; all shards are asked before the first answer is read.

    clocks: is filled with each shard's clock, read before its rows: a row may be newer, never older than it says.
    """
    for shard, wire, mine in zip(shards, wires, keys, strict=True):
        clock = [pack("HGET", shard.meta, "clock")] if clocks is not None else []
        commands = [*clock, *hmget(shard.rows, mine)]
        if commands:
            wire.send([b"".join(commands)])
    rows = RowReplies(sum(map(len, keys)), row_bytes(spec))
    for wire, mine in zip(wires, keys, strict=True):
        if clocks is not None:
            clocks.append(int(wire.checked([wire.read()])[0] or 0))
        for n in chunks(len(mine)):
            wire.read_rows(rows, n)
    return rows.records()


def _scan(spec: TableSpec, run: str, shards: Sequence[ShardKeys], wires: Sequence[Wire]) -> Changes:
    for keys, wire in zip(shards, wires, strict=True):
        wire.send([pack("HMGET", keys.meta, *shard_meta.NUMBERS)])
    metas = [shard_meta.from_values(wire.checked([wire.read()])[0], []) for wire in wires]
    found: list[bytes] = []
    records: list[bytes] = []
    for keys, wire in zip(shards, wires, strict=True):
        cursor = b"0"
        while True:
            cursor, flat = wire.call("HSCAN", keys.rows, cursor, "COUNT", SCAN_COUNT)
            found += flat[::2]
            records += flat[1::2]
            if cursor == b"0":
                break
    # HSCAN may name a key twice when the hash is resized meanwhile
    keys_read, first = np.unique(np.frombuffer(b"".join(found), "<u8"), return_index=True)
    if len(first) < len(records):
        records = [records[i] for i in first]
    else:
        keys_read = np.frombuffer(b"".join(found), "<u8")
    block = decode(spec, keys_read, Records.of(records), with_state=False)
    return change_set(spec, run, metas, keys_read, block, rescan=True)
