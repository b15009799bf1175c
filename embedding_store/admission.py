"""What of a call is let in: ids that are not another's, events that no forget came after, keys that are admitted. Pure.

The rules are those of `embedding_store.contract.EmbeddingStore.apply`. Everything after it, statistics, optimizers and
sequences, sees a part in which what is left out is zero.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from embedding_store.contract import I64, U32, Bool, Orders
from embedding_store.flush_parts import Part
from embedding_store.orders import NO_TIME, later, of_entries
from embedding_store.records import FENCE, Block, Records, decode
from embedding_store.spec import TableSpec
from embedding_store.standing import EVICTED, FORGOTTEN, ROW, STUB, Standings, standings
from native.ragged import Ragged
from native.rows import FENCED, same_bytes


@dataclass(frozen=True, slots=True)
class Screened:
    """A part as far as it is let in, and the rows that it starts from."""

    part: Part
    block: Block  # forgotten rows are missing, counts of stubs are in the headers
    before: Standings  # (n,) as stored
    own: Bool  # (n,) has an own event that counts
    admitted: Bool  # (n,) has a row, or may have one
    wiped: Bool  # (n,) forgotten by this call
    fences: npt.NDArray[np.void]  # (n,) of dtype FENCE: to be kept with the key
    fenced: Bool  # (n,)
    late: int
    refused: int


def screen(spec: TableSpec, part: Part, stored: Records, clock: int) -> Screened:
    """`stored` answers the part's keys; `clock` is the shard's after the call."""
    block = decode(spec, part.keys, stored)
    before = standings(block)
    taken = taken_by_others(block, before, part.checks, part.ids)
    refused = int(np.maximum(part.counts[taken], 1).sum())
    if refused:
        part = _without(part, taken)
    fenced = (block.stored["entries"] & FENCED) != 0
    fences = block.fences() if fenced.any() else np.zeros(len(fenced), FENCE)
    # a mark keeps its fence until it is dropped; a row outlives its own
    fenced &= (before == FORGOTTEN) | (fences["clock"] > clock - spec.remember_events)
    late = 0
    if fenced.any():
        part, late = _after_fences(part, fenced, fences)
    wiped = np.zeros(len(fenced), np.bool_)
    if len(part.forget_rows):
        theirs = _forgets_of_others(block, before, part)
        refused += int(theirs.sum())
        rows, orders = part.forget_rows[~theirs], part.forget_orders[~theirs]
        wiped[rows] = True
        part = _after_forgets(part, wiped, rows, orders)
        fences, fenced = _fences(fences, fenced, rows, orders, clock)
        block = decode(spec, part.keys, stored.keep(~wiped))
    counted = (before == STUB) & ~wiped
    if counted.any():
        block.headers[counted] = block.stored[counted]
        block.headers["entries"][counted] = 0
    own = part.counts > 0
    own[part.append_rows] = True
    own[part.value_rows] = True
    is_row = (before == ROW) & ~wiped
    mark = wiped | (before == EVICTED) | (before == FORGOTTEN)
    admitted = is_row | (own & (block.headers["count"] + part.counts >= spec.admit_after))
    if not spec.admit_after:
        admitted |= ~mark
    shut = wiped | ~admitted
    if part.gradients is not None and shut.any():
        moved = part.gradients.any(axis=1)
        if part.state_deltas is not None:
            moved |= part.state_deltas.any(axis=1)
        late += int((moved & mark & ~wiped & ~own).sum())
        part = _without_gradients(part, shut)
    return Screened(part, block, before, own, admitted, wiped, fences, fenced, late, refused)


def taken_by_others(block: Block, before: Standings, checks: U32, ids: Ragged) -> Bool:
    """(n,) as `EmbeddingStore.taken`. A row without id is nobody's yet; a stub keeps check bits and no id."""
    named = ids.lengths > 0
    h = block.headers
    known = named & (h["id_len"] > 0)
    same = np.ones(len(named), np.bool_)
    lengths = np.where(known & (ids.lengths == h["id_len"]), ids.lengths, 0)
    same_bytes(block.data, block.id_at, ids.data, ids.offsets[:-1], lengths, same)
    taken: Bool = known & ((h["check"] != checks) | (ids.lengths != h["id_len"]) | ~same)
    if (before == STUB).any():
        check = block.stored["check"]
        taken |= (before == STUB) & named & (check != 0) & (check != checks)
    return taken


def _forgets_of_others(block: Block, before: Standings, part: Part) -> Bool:
    """(f,) forgets of an id whose key is another's."""
    if part.forget_checks is None:
        return np.zeros(len(part.forget_rows), np.bool_)
    rows = part.forget_rows
    known = (block.headers["id_len"][rows] > 0) | ((before[rows] == STUB) & (block.stored["check"][rows] != 0))
    return np.asarray(known & (block.stored["check"][rows] != part.forget_checks))


def _without(part: Part, rows: Bool) -> Part:
    """The part without anything of some rows but their forgets."""
    part = replace(part, counts=np.where(rows, 0, part.counts), positives=np.where(rows, np.float32(0), part.positives))
    own = part.own_events
    part = _kept(part, ~rows[part.append_rows], ~rows[part.value_rows])
    if own is not None:
        kept = ~rows[own.rows]
        part = replace(part, own_events=replace(own, rows=own.rows[kept], orders=own.orders[kept],
                                                positives=own.positives[kept]))  # fmt: skip
    return _without_gradients(part, rows)


def _without_gradients(part: Part, rows: Bool) -> Part:
    zero = np.float32(0.0)
    return replace(
        part,
        gradients=None if part.gradients is None else np.where(rows[:, None], zero, part.gradients),
        state_deltas=None if part.state_deltas is None else np.where(rows[:, None], zero, part.state_deltas),
    )


def _kept(part: Part, appends: Bool, values: Bool) -> Part:
    """The part with some of its appends and values."""
    if not appends.all():
        part = replace(part, appends=part.appends[appends], append_rows=part.append_rows[appends])
    if not values.all():
        kept = np.flatnonzero(values)
        part = replace(
            part,
            values=part.values.take(kept),
            value_orders=part.value_orders[kept],
            value_rows=part.value_rows[kept],
        )
    return part


def _recounted(part: Part, rows: Bool, kept: Bool) -> Part:
    """Counts and positives of some rows from those of their own events that are kept (e,)."""
    own = part.own_events
    if own is None:
        return part
    n = len(part.keys)
    at, weights = own.rows[kept], own.positives[kept]
    counts = np.bincount(at, minlength=n).astype(np.int64)
    positives = np.bincount(at, weights=weights, minlength=n).astype(np.float32)
    return replace(
        part,
        counts=np.where(rows, counts, part.counts),
        positives=np.where(rows, positives, part.positives),
        own_events=replace(own, rows=at, orders=own.orders[kept], positives=weights),
    )


def _after_fences(part: Part, fenced: Bool, fences: npt.NDArray[np.void]) -> tuple[Part, int]:
    """The part without own events that an earlier call's forget came after, and how many those were."""

    def kept(rows: I64, orders: Orders) -> Bool:
        return ~fenced[rows] | later(orders, fences[rows])

    before = int(part.counts[fenced].sum())
    if part.own_events is not None:
        part = _recounted(part, fenced, kept(part.own_events.rows, part.own_events.orders))
    part = _kept(part, kept(part.append_rows, of_entries(part.appends)), kept(part.value_rows, part.value_orders))
    return part, before - int(part.counts[fenced].sum())


def _after_forgets(part: Part, wiped: Bool, rows: I64, orders: Orders) -> Part:
    """The part with that of its forgotten keys only which comes after the tombstone.

    In event time, and in its own partition in the stream too: whether a key's earlier events come in the tombstone's
    call or in the one before must make no difference.
    """
    tombstones = np.zeros(len(wiped), FENCE)
    for name in ("time_ms", "place", "partition"):
        tombstones[name][rows] = orders[name]

    def kept(at: I64, of: Orders) -> Bool:
        tombstone = tombstones[at]
        behind = (of["partition"] == tombstone["partition"]) & (of["place"] < tombstone["place"])
        counts = (tombstone["time_ms"] != NO_TIME) & later(of, tombstone) & ~behind
        return np.asarray(~wiped[at] | counts)

    part = _kept(part, kept(part.append_rows, of_entries(part.appends)), kept(part.value_rows, part.value_orders))
    if part.own_events is not None:
        return _recounted(part, wiped, kept(part.own_events.rows, part.own_events.orders))
    return replace(
        part,
        counts=np.where(wiped, 0, part.counts),
        positives=np.where(wiped, np.float32(0), part.positives),
    )


def _fences(
    fences: npt.NDArray[np.void], fenced: Bool, rows: I64, orders: Orders, clock: int
) -> tuple[npt.NDArray[np.void], Bool]:
    """Fences with those of new forgets: the later of two stays, remembered from now on."""
    fences, was = fences.copy(), fenced
    fenced = fenced.copy()
    new = ~was[rows] | later(orders, fences[rows])
    for name in ("time_ms", "place", "partition"):
        fences[name][rows[new]] = orders[name][new]
    fences["clock"][rows] = clock
    fenced[rows] = True
    return fences, fenced
