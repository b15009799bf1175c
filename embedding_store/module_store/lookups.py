"""Asking a shard for rows by key."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from embedding_store.contract import U64
from embedding_store.module_store.rows_blob import WITH_STATE, RowsReply, parse_rows
from embedding_store.records import U8
from embedding_store.redis_store.keys import module_key
from embedding_store.redis_store.resp import Buffer, framed
from embedding_store.spec import TableSpec
from native.rows import ENTRY_BYTES, HEADER_BYTES

CHUNK = 65_536
"""Keys per command at most, and"""
CHUNK_BYTES = 1 << 24
"""bytes of rows per command, about: some 10 ms of the server's time."""


def rows_per_command(spec: TableSpec, flags: int) -> int:
    """How many rows of a table, at their longest, a command may ask for."""
    state_dim = spec.state_dim if flags & WITH_STATE else 0
    entry = ENTRY_BYTES if spec.kind == "sequence" else 1
    row = HEADER_BYTES + 4 * (spec.dim + state_dim) + entry * spec.length
    return min(CHUNK, 1 + CHUNK_BYTES // row)


def lookups(spec: TableSpec, shard: int, keys: U64, flags: int) -> list[Buffer]:
    """Commands for all keys (n,)."""
    commands: list[Buffer] = []
    step = rows_per_command(spec, flags)
    for lo in range(0, len(keys), step):
        chunk = np.ascontiguousarray(keys[lo : lo + step])
        command, blob = framed(["TOW.LOOKUP", module_key(spec.name, shard)], chunk.nbytes, [flags])
        blob[:] = chunk.view(np.uint8)
        commands.append(command.data)
    return commands


def parse_lookups(spec: TableSpec, replies: Sequence[U8], n: int, flags: int) -> list[RowsReply]:
    """The replies to `lookups` of n keys."""
    step = rows_per_command(spec, flags)
    sizes = [min(step, n - lo) for lo in range(0, n, step)]
    return [parse_rows(spec, reply, size, flags) for reply, size in zip(replies, sizes, strict=True)]
