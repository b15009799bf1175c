"""Cutting a flush into what each shard gets. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from embedding_store.contract import F32, I64, U32, U64, Flush
from embedding_store.spec import TableSpec
from native.mixing import partition
from native.ragged import Ragged


@dataclass(frozen=True, slots=True)
class Part:
    """The rows of a flush that live in one shard. Arrays are read-only to whoever gets them."""

    keys: U64  # (n,) unique
    counts: I64  # (n,)
    positives: F32  # (n,)
    checks: U32  # (n,)
    ids: Ragged  # n
    gradients: F32 | None  # (n, dim)
    appends: I64  # (m, 4) words of entries, see native.sequences
    append_rows: I64  # (m,)
    forget: U64  # (f,) unique


def by_shard(keys: U64, shards: int) -> tuple[I64, I64]:
    """(order (n,), starts (shards + 1,)): rows of `keys` shard by shard, in their old order within each."""
    starts = np.zeros(shards + 1, np.int64)
    order = np.empty(len(keys), np.int64)
    partition(keys, starts, order)
    return order, starts


def parts_of(spec: TableSpec, flush: Flush) -> list[Part]:
    """One part per shard; a shard without rows gets an empty one. The flush has passed `validation.checked_flush`."""
    appends, append_rows = _words(flush)
    forget = np.unique(flush.forget)
    if spec.shards == 1:
        return [
            Part(
                flush.keys, flush.counts, flush.positives, flush.checks, flush.ids, flush.gradients,
                appends, append_rows, forget,
            )
        ]  # fmt: skip
    order, starts = by_shard(flush.keys, spec.shards)
    place = np.empty_like(order)  # where each row of the flush went
    place[order] = np.arange(len(order))
    append_place = place[append_rows]
    append_order = np.argsort(append_place, kind="stable")
    append_starts = np.searchsorted(append_place[append_order], starts)
    forget_order, forget_starts = by_shard(forget, spec.shards)
    parts = []
    for s in range(spec.shards):
        rows = order[starts[s] : starts[s + 1]]
        mine = append_order[append_starts[s] : append_starts[s + 1]]
        parts.append(
            Part(
                keys=flush.keys[rows],
                counts=flush.counts[rows],
                positives=flush.positives[rows],
                checks=flush.checks[rows],
                ids=flush.ids.take(rows),
                gradients=None if flush.gradients is None else flush.gradients[rows],
                appends=appends[mine],
                append_rows=append_place[mine] - starts[s],
                forget=forget[forget_order[forget_starts[s] : forget_starts[s + 1]]],
            )
        )
    return parts


def _words(flush: Flush) -> tuple[I64, I64]:
    if flush.appends is None or flush.append_rows is None:
        return np.zeros((0, 4), np.int64), np.zeros(0, np.int64)
    return np.ascontiguousarray(flush.appends).view(np.int64).reshape(-1, 4), flush.append_rows
