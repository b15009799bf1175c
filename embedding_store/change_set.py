"""From what a feed named and what is stored now to the reply of `EmbeddingStore.changes`. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from embedding_store.contract import U64, Changes, Cursor
from embedding_store.decay import decay_read
from embedding_store.records import Block, rows_of
from embedding_store.shard import ShardMeta
from embedding_store.spec import TableSpec


def change_set(
    spec: TableSpec, run_id: str, metas: Sequence[ShardMeta], keys: U64, block: Block, *, rescan: bool
) -> Changes:
    """Changes up to the feed positions of `metas`, read before the rows: what moved since is named again next time.

    keys (n,) unique, block: their rows now, not decayed; those without a row are the deleted. A count of a key that is
    not admitted yet, and a mark of one that is gone, is no row.
    """
    found = block.found
    present = keys[found]
    if len(present) < len(keys):
        block = block.at(np.flatnonzero(found))
    clock = tuple(meta.clock for meta in metas)
    decay_read(spec, block, present, clock)
    return Changes(
        cursor=Cursor(run_id, tuple(str(meta.feed) for meta in metas)),
        rescan=rescan,
        keys=present,
        rows=rows_of(block),
        deleted=np.zeros(0, np.uint64) if rescan else keys[~found],
        clock=clock,
        event_time_ms=min(meta.event_time_ms for meta in metas),
        produced_ms=min(meta.produced_ms for meta in metas),
    )


def positions(spec: TableSpec, run_id: str, cursor: Cursor | None) -> list[int] | None:
    """Feed positions per shard that a cursor stands for, or None: the table has to be scanned."""
    if cursor is None or cursor.run_id != run_id or len(cursor.positions) != spec.shards:
        return None
    return [int(position) for position in cursor.positions]


def reaches_back(position: int, first: int | None, newest: int) -> bool:
    """Whether a feed whose oldest entry is `first` (None: it is empty) still tells all that came after `position`."""
    if position > newest:
        return False  # a feed that went back in time under the same run
    return position == newest or (first is not None and first <= position + 1)
