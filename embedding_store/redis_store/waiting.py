"""Blocking until a feed moves."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from embedding_store.change_set import positions
from embedding_store.contract import Cursor
from embedding_store.redis_store.resp import pack
from embedding_store.redis_store.session import Session, table_run
from embedding_store.spec import TableSpec

CLUSTER_BLOCK_S = 0.01
"""No command can block on keys of several slots, so in a Cluster feeds are polled one after another."""


class Watched(NamedTuple):
    """A shard's feed, and the position after which a change counts."""

    key: bytes
    position: int


Command = Callable[[Sequence[Watched], int], bytes]
"""(feeds of one slot, ms to block) → a command whose reply is true as soon as one of them has moved."""


def wait(
    session: Session,
    specs: Sequence[TableSpec],
    cursors: Sequence[Cursor],
    timeout_s: float,
    key_of: Callable[[str, int], bytes],
    command: Command,
    longest_block_s: float | None,
) -> bool:
    """As `EmbeddingStore.wait_for_changes`.

    key_of: key of a (table, shard)'s feed. longest_block_s: of one command; None: in a Cluster, feed by feed.
    """
    watched = []
    for spec, cursor in zip(specs, cursors, strict=True):
        keys = [key_of(spec.name, s) for s in range(spec.shards)]
        at = positions(spec, table_run([session.shared(key).run_id for key in keys]), cursor)
        if at is None:
            return True  # another run: there is a whole table to read
        watched += [Watched(key, position) for key, position in zip(keys, at, strict=True)]
    groups = [watched] if longest_block_s is not None else [[one] for one in watched]
    longest_s = CLUSTER_BLOCK_S if longest_block_s is None else longest_block_s
    deadline = time.monotonic() + timeout_s
    while True:
        for group in groups:
            block_ms = 1 + int(1000 * min(longest_s, max(0.0, deadline - time.monotonic())))  # 0 would block for ever
            if session.shared(group[0].key).ask(command(group, block_ms))[0]:
                return True
        if time.monotonic() >= deadline:
            return False


def xread(watched: Sequence[Watched], block_ms: int) -> bytes:
    """The command for feeds that are streams."""
    names = [one.key for one in watched]
    entries = [f"{one.position}-0" for one in watched]
    return pack("XREAD", "COUNT", 1, "BLOCK", block_ms, "STREAMS", *names, *entries)
