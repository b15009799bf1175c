"""Values of record tables: of a key's values the largest by (event time, partition, place) stays. Pure."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from embedding_store.contract import I64, Bool
from embedding_store.flush_parts import Part
from embedding_store.orders import later, ranked
from embedding_store.records import Block
from native.ragged import Ragged
from native.rows import put_ragged


def replace_values(block: Block, part: Part) -> tuple[Block, Bool]:
    """The block with the part's newer values, and the rows (n,) that have one.

    Keeping the largest under a total order commutes and may be repeated; two values at one place, which no stream
    makes, are told apart by their bytes.
    """
    n = len(part.keys)
    chosen = np.full(n, -1, np.int64)
    newest = _newest(part)
    chosen[part.value_rows[newest]] = newest
    rows = np.flatnonzero(chosen >= 0)
    given, stored = part.value_orders[chosen[rows]], block.orders[rows]
    wins = later(given, stored)
    for i in np.flatnonzero(~wins & ~later(stored, given)).tolist():
        wins[i] = part.values.at(int(chosen[rows[i]])) > block.values.at(int(rows[i]))
    rows = rows[wins]
    replaced = np.zeros(n, np.bool_)
    replaced[rows] = True
    block.orders[rows] = part.value_orders[chosen[rows]]
    lengths = block.values.lengths
    lengths[rows] = part.values.lengths[chosen[rows]]
    offsets = np.zeros(n + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    out = np.empty(offsets[-1], np.uint8)
    put_ragged(block.values.data, block.values.offsets[:-1], lengths, ~replaced, offsets[:-1], out)
    if len(rows):
        starts = part.values.offsets[:-1][np.maximum(chosen, 0)]
        put_ragged(part.values.data, starts, lengths, replaced, offsets[:-1], out)
    return replace(block, values=Ragged(offsets, out)), replaced


def _newest(part: Part) -> I64:
    """Index of each key's newest value."""
    rows, orders = part.value_rows, part.value_orders
    if not len(rows):
        return rows
    order = ranked(orders, rows)
    newest: I64 = order[np.append(rows[order][1:] != rows[order][:-1], True)]
    same = np.zeros(len(rows), np.bool_)
    same[order[1:]] = (rows[order][1:] == rows[order][:-1]) & ~later(orders[order[1:]], orders[order[:-1]])
    if same.any():  # values at one place: among a key's last the largest bytes
        best: dict[int, int] = {}
        for i in order.tolist():
            row = int(rows[i])
            if row not in best or not same[i] or part.values.at(i) > part.values.at(best[row]):
                best[row] = i
        newest = np.array(list(best.values()), np.int64)
    return newest
