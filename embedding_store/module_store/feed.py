"""Reading a table's change feed, and scanning it where the feed doesn't reach back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from embedding_store.change_set import change_set, positions
from embedding_store.contract import U64, Changes, Cursor
from embedding_store.module_store.calls import Answer, Place, Request
from embedding_store.module_store.lookups import lookups, parse_lookups, rows_per_command
from embedding_store.module_store.rows_blob import STORED, WITH_KEYS, RowsReply, block_of, parse_rows
from embedding_store.redis_store.keys import module_key
from embedding_store.redis_store.resp import pack
from embedding_store.redis_store.session import table_run
from embedding_store.shard import ShardMeta
from embedding_store.spec import TableSpec

SCAN_COUNT = 4096
"""Rows per TOW.SCAN at most: a few milliseconds of the server's time."""

Ask = Callable[[Sequence[Place], Request], dict[Place, Answer]]
"""`calls.ask_shards` of some nodes."""


def read_changes(ask: Ask, spec: TableSpec, cursor: Cursor | None) -> Changes:
    """As `EmbeddingStore.changes`. Feed positions are read before rows: what moves in between is named again."""
    at = None if cursor is None else positions(spec, cursor.run_id, cursor)
    if cursor is None or at is None:
        return _scan(ask, spec)
    places = [Place(spec.name, s) for s in range(spec.shards)]
    answers = ask(places, lambda p: [pack("TOW.CHANGES", module_key(*p), at[p.shard])])
    run = _run(places, answers)
    told = {place: answers[place].replies[0] for place in places}
    if run != cursor.run_id or any(reply[4] is None for reply in told.values()):
        return _scan(ask, spec)
    metas = [_meta(reply) for reply in told.values()]
    named: dict[Place, U64] = {place: reply[4].view(np.uint64) for place, reply in told.items()}
    later = [place for place, keys in named.items() if len(keys) and told[place][5] is None]
    looked_up = ask(later, lambda p: lookups(spec, p.shard, named[p], STORED)) if later else {}
    replies: list[RowsReply] = []
    for place, keys in named.items():
        if place in looked_up:
            replies += parse_lookups(spec, looked_up[place].replies, len(keys), STORED)
        elif len(keys):
            replies.append(parse_rows(spec, told[place][5], len(keys), STORED))
    block, _ = block_of(spec, replies)
    return change_set(spec, run, metas, np.concatenate(list(named.values())), block, rescan=False)


def _scan(ask: Ask, spec: TableSpec) -> Changes:
    places = [Place(spec.name, s) for s in range(spec.shards)]
    # an entry of the future reaches no one: the position alone, without keys
    started = ask(places, lambda p: [pack("TOW.CHANGES", module_key(*p), 2**63 - 1)])
    metas = [_meta(started[place].replies[0]) for place in places]
    replies: list[RowsReply] = []
    cursors = dict.fromkeys(places, b"0")
    count = min(SCAN_COUNT, rows_per_command(spec, STORED))
    while cursors:
        answers = ask(list(cursors), lambda p: [pack("TOW.SCAN", module_key(*p), cursors[p], count)])
        for place, answer in answers.items():
            following, rows = answer.replies[0]
            replies.append(parse_rows(spec, rows, None, WITH_KEYS | STORED))
            cursors[place] = following.tobytes()
            if cursors[place] == b"0":
                del cursors[place]
    block, _ = block_of(spec, replies)
    keys = np.concatenate([reply.keys for reply in replies])
    once, first = np.unique(keys, return_index=True)
    if len(once) < len(keys):  # a key that went and came back meanwhile, or got its id
        keys, block = once, block.at(first)
    return change_set(spec, _run(places, started), metas, keys, block, rescan=True)


def _run(places: Sequence[Place], answers: Mapping[Place, Answer]) -> str:
    return table_run([answers[place].run_id for place in places])


def _meta(reply: Sequence[Any]) -> ShardMeta:
    feed, clock, event_time_ms, produced_ms, *_ = reply
    return ShardMeta(clock=clock, event_time_ms=event_time_ms, produced_ms=produced_ms, feed=feed)
