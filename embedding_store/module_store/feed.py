"""Reading a table's change feed, and scanning it where the feed doesn't reach back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from embedding_store.change_set import change_set, positions
from embedding_store.contract import U64, Changes, Cursor
from embedding_store.module_store.calls import Answer, Request
from embedding_store.module_store.lookups import lookups, parse_lookups, rows_per_command
from embedding_store.module_store.rows_blob import STORED, WITH_KEYS, RowsReply, block_of, parse_rows
from embedding_store.redis_store.keys import module_key
from embedding_store.redis_store.resp import pack
from embedding_store.redis_store.session import table_run
from embedding_store.shard import ShardMeta
from embedding_store.spec import TableSpec

SCAN_COUNT = 4096
"""Rows per TOW.SCAN at most: a few milliseconds of the server's time."""

Ask = Callable[[Sequence[int], Request], dict[int, Answer]]
"""`calls.ask_shards` of one table."""


def read_changes(ask: Ask, spec: TableSpec, cursor: Cursor | None) -> Changes:
    """As `EmbeddingStore.changes`. Feed positions are read before rows: what moves in between is named again."""
    at = None if cursor is None else positions(spec, cursor.run_id, cursor)
    if cursor is None or at is None:
        return _scan(ask, spec)
    answers = ask(range(spec.shards), lambda s: [pack("TOW.CHANGES", module_key(spec.name, s), at[s])])
    run = _run(spec, answers)
    told = [answers[s].replies[0] for s in range(spec.shards)]
    if run != cursor.run_id or any(reply[4] is None for reply in told):
        return _scan(ask, spec)
    metas = [_meta(reply) for reply in told]
    named: list[U64] = [reply[4].view(np.uint64) for reply in told]
    later = [s for s, (keys, reply) in enumerate(zip(named, told, strict=True)) if len(keys) and reply[5] is None]
    looked_up = ask(later, lambda s: lookups(spec, s, named[s], STORED)) if later else {}
    replies: list[RowsReply] = []
    for s, (keys, reply) in enumerate(zip(named, told, strict=True)):
        if s in looked_up:
            replies += parse_lookups(spec, looked_up[s].replies, len(keys), STORED)
        elif len(keys):
            replies.append(parse_rows(spec, reply[5], len(keys), STORED))
    block, _ = block_of(spec, replies)
    return change_set(spec, run, metas, np.concatenate(named), block, rescan=False)


def _scan(ask: Ask, spec: TableSpec) -> Changes:
    shards = range(spec.shards)
    # an entry of the future reaches no one: the position alone, without keys
    started = ask(shards, lambda s: [pack("TOW.CHANGES", module_key(spec.name, s), 2**63 - 1)])
    metas = [_meta(started[s].replies[0]) for s in shards]
    replies: list[RowsReply] = []
    cursors = dict.fromkeys(shards, b"0")
    count = min(SCAN_COUNT, rows_per_command(spec, STORED))
    while cursors:
        answers = ask(list(cursors), lambda s: [pack("TOW.SCAN", module_key(spec.name, s), cursors[s], count)])
        for shard, answer in answers.items():
            following, rows = answer.replies[0]
            replies.append(parse_rows(spec, rows, None, WITH_KEYS | STORED))
            cursors[shard] = following.tobytes()
            if cursors[shard] == b"0":
                del cursors[shard]
    block, _ = block_of(spec, replies)
    keys = np.concatenate([reply.keys for reply in replies])
    once, first = np.unique(keys, return_index=True)
    if len(once) < len(keys):  # a key that went and came back meanwhile, or got its id
        keys, block = once, block.at(first)
    return change_set(spec, _run(spec, started), metas, keys, block, rescan=True)


def _run(spec: TableSpec, answers: dict[int, Answer]) -> str:
    return table_run([answers[s].run_id for s in range(spec.shards)])


def _meta(reply: Sequence[Any]) -> ShardMeta:
    feed, clock, event_time_ms, produced_ms, *_ = reply
    return ShardMeta(clock=clock, event_time_ms=event_time_ms, produced_ms=produced_ms, feed=feed)
