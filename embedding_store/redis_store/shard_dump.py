"""A shard of the stock backend as its keys' DUMPs, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from embedding_store.eviction import INDEXES
from embedding_store.redis_store import shard_meta
from embedding_store.redis_store.client import Wire
from embedding_store.redis_store.keys import ShardKeys
from embedding_store.redis_store.resp import Buffer, pack
from embedding_store.redis_store.session import Session
from embedding_store.redis_store.steady import steady_reads
from embedding_store.redis_store.transaction import begin_feed, committed
from embedding_store.shard import ShardMeta, raised

Parts = Mapping[str, bytes]
"""Name of a key of the shard → its DUMP. Keys that don't exist are left out."""

PARTS = ("rows", "meta", *INDEXES)
"""Not the feed: readers have to scan a restored shard. Not the version, which must not be one that was seen before."""


class ShardExport(NamedTuple):
    """A shard as of one moment."""

    meta: ShardMeta  # generation, clock, feed and offsets; the rest is in the parts
    parts: Parts


def export_stock(session: Session, keys: ShardKeys) -> ShardExport:
    """All keys of the shard, as of one moment. Reads only, so it works while memory is full, unlike MULTI."""
    dumps = [pack("DUMP", getattr(keys, name)) for name in PARTS]
    (replies,) = steady_reads([keys], [session.shared(keys.version)], [[pack("HGETALL", keys.meta), *dumps]])
    meta, *payloads = replies
    parts = {name: payload for name, payload in zip(PARTS, payloads, strict=True) if payload is not None}
    return ShardExport(shard_meta.from_hash(meta), parts)


def import_stock(session: Session, keys: ShardKeys, place: str, export: ShardExport, generation: int) -> None:
    """Put the shard back, at `generation`; atomic. Its memory is freed first. Raises StoreFull, StoreUnavailable."""
    meta = raised(export.meta, generation)
    gone = [getattr(keys, name) for name in (*PARTS, "feed")]
    commands: list[list[Buffer]] = [[pack("DEL", *gone)]]
    commands += [restore_command(getattr(keys, name), payload) for name, payload in export.parts.items()]
    tail = [pack("HSET", keys.meta, "generation", meta.generation, "feed", meta.feed), *begin_feed(keys, meta.feed)]
    commands += [[command] for command in (*tail, pack("INCR", keys.version))]
    transact(session.shared(keys.version), commands, place)


def restore_command(key: bytes, payload: bytes, ttl_ms: int = 0) -> list[Buffer]:
    """RESTORE … REPLACE; the payload is not copied. ttl_ms 0: for good."""
    head = b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in (b"RESTORE", key, b"%d" % ttl_ms))
    return [b"*5\r\n%b$%d\r\n" % (head, len(payload)), memoryview(payload), b"\r\n$7\r\nREPLACE\r\n"]


def transact(wire: Wire, commands: list[list[Buffer]], place: str) -> None:
    """MULTI, the commands, EXEC. Raises StoreFull, StoreUnavailable; Moved before anything was done."""
    wire.send([pack("MULTI"), *(buffer for command in commands for buffer in command), pack("EXEC")])
    committed(wire, len(commands), place)
