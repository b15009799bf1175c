"""Asking a shard for rows by key."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from embedding_store.contract import U64
from embedding_store.module_store.rows_blob import RowsReply, parse_rows
from embedding_store.records import U8
from embedding_store.redis_store.keys import module_key
from embedding_store.redis_store.resp import Buffer, framed
from embedding_store.spec import TableSpec

CHUNK = 65_536
"""Keys per command: some 20 ms of the server's time."""


def lookups(table: str, shard: int, keys: U64, flags: int) -> list[Buffer]:
    """Commands for all keys (n,), CHUNK each."""
    commands: list[Buffer] = []
    for lo in range(0, len(keys), CHUNK):
        chunk = np.ascontiguousarray(keys[lo : lo + CHUNK])
        command, blob = framed(["TOW.LOOKUP", module_key(table, shard)], chunk.nbytes, [flags])
        blob[:] = chunk.view(np.uint8)
        commands.append(command.data)
    return commands


def parse_lookups(spec: TableSpec, replies: Sequence[U8], n: int, flags: int) -> list[RowsReply]:
    """The replies to `lookups` of n keys."""
    sizes = [min(CHUNK, n - lo) for lo in range(0, n, CHUNK)]
    return [parse_rows(spec, reply, size, flags) for reply, size in zip(replies, sizes, strict=True)]
