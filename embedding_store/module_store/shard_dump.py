"""A shard of the module's backend as the DUMP of its one key, and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from embedding_store.errors import StoreUnavailable
from embedding_store.module_store.status import status_of
from embedding_store.redis_store.keys import module_key
from embedding_store.redis_store.resp import pack
from embedding_store.redis_store.session import Session
from embedding_store.redis_store.shard_dump import ShardExport, restore_command, transact
from embedding_store.redis_store.steady import TRIES
from embedding_store.shard import ShardMeta

PART = "shard"


def export_module(ask: Callable[[list[bytes]], list[Any]], table: str, shard: int) -> ShardExport:
    """The key as of one moment: TOW.INFO is the same before and after, and every change of a shard moves it.

    ask: commands → their replies. Reads only, so it works while memory is full, unlike MULTI.
    """
    key = module_key(table, shard)
    for _ in range(TRIES):
        before, payload, after = ask([pack("TOW.INFO", key), pack("DUMP", key), pack("TOW.INFO", key)])
        if before != after or payload is None:
            continue
        status, feed = status_of(before), int(before[before.index(b"feed") + 1])
        meta = ShardMeta(generation=status.generation, clock=status.clock, feed=feed, offsets=status.offsets)
        return ShardExport(meta, {PART: payload})
    raise StoreUnavailable(f"shard {shard} of table '{table}' changed during each of {TRIES} reads; retry")


def import_module(session: Session, table: str, shard: int, place: str, export: ShardExport, generation: int) -> None:
    """Put the shard back, at `generation`; atomic. Its memory is freed first. Raises StoreFull, StoreUnavailable."""
    key = module_key(table, shard)
    restored = restore_command(key, export.parts[PART])
    transact(session.shared(key), [[pack("DEL", key)], restored, [pack("TOW.GENERATION", key, generation)]], place)
