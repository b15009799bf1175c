"""Several reads of a shard as of one moment, without MULTI.

Redis 7.0 refuses to queue any command while memory is full, reads included, and that is when offsets have to be read
and mirrors to be fed. Whoever changes a shard increments its version in the same EXEC, so reads between two equal
versions saw one state. All are sent in one piece, which a server executes without a break: the second try is rare.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from embedding_store.errors import StoreUnavailable
from embedding_store.redis_store.client import Wire
from embedding_store.redis_store.keys import ShardKeys
from embedding_store.redis_store.resp import pack

TRIES = 50


def steady_reads(
    shards: Sequence[ShardKeys], wires: Sequence[Wire], commands: Sequence[Sequence[bytes]]
) -> list[list[Any]]:
    """Replies of each shard's commands, each shard as of one moment. Raises StoreUnavailable."""
    replies: list[list[Any]] = [[] for _ in shards]
    waiting = list(range(len(shards)))
    for _ in range(TRIES):
        for i in waiting:
            version = pack("GET", shards[i].version)
            wires[i].send([b"".join([version, *commands[i], version])])
        torn = []
        for i in waiting:
            before, *middle, after = wires[i].checked([wires[i].read() for _ in range(2 + len(commands[i]))])
            replies[i] = middle
            if before != after:
                torn.append(i)
        if not torn:
            return replies
        waiting = torn
    raise StoreUnavailable(f"{len(waiting)} shards changed during each of {TRIES} reads; retry, or run fewer writers")
