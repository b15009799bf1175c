"""The merge core: what a shard's rows become when it applies its part of a flush. Pure; every backend calls it.

The four cells {stored, missing} × {the client saw it, did not} are one path: a call carries gradients, never vectors,
so what the client saw does not enter; a missing row starts from its initial vector, and two clients that create the
same row at once both add to it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from embedding_store.admission import Screened, screen
from embedding_store.contract import F32, I64, U64, Bool
from embedding_store.decay import decay, rate_at
from embedding_store.flush_parts import Part
from embedding_store.records import U8, Block, Records, byte_rows
from embedding_store.spec import Adagrad, Adam, RowwiseAdagrad, Sgd, TableSpec
from embedding_store.standing import FORGOTTEN, ROW, STUB, Standings
from embedding_store.values import replace_values
from native import optimizers
from native.ragged import Ragged
from native.rows import (
    BARE,
    ENTRY_BYTES,
    FENCE_BYTES,
    FENCED,
    HEADER_BYTES,
    ORDER_BYTES,
    encode_records,
    place_records,
    put_fixed,
    put_ragged,
)
from native.sequences import group_appends, merge_entries
from native.statistics import observe


@dataclass(frozen=True, slots=True)
class Merged:
    """What becomes of a part's keys: `rows` index those whose records are to be written."""

    keys: U64  # (n,)
    block: Block  # n rows
    tails: Ragged  # n: what follows the body's numbers in a record: value, id, fence
    lengths: I64  # (n,) bytes of each record
    bare: Bool  # (n,) no row: the record is a header without body, see `native.rows`
    rows: I64  # (w,) those with a row first
    before: Standings  # (n,)
    after: Standings  # (n,)
    fences: npt.NDArray[np.void]  # (n,) of dtype FENCE
    fenced: Bool  # (n,)
    late: int
    refused: int
    forgotten: int  # rows and counts that forgets removed

    @property
    def written(self) -> Bool:
        """(n,) whose records are to be written."""
        written = np.zeros(len(self.keys), np.bool_)
        written[self.rows] = True
        return written

    @property
    def changed(self) -> U64:
        """Keys for the change feed: rows that were written, and rows that are gone."""
        gone = (self.before == ROW) & (self.after != ROW)
        return np.concatenate([self.keys[self.rows[~self.bare[self.rows]]], self.keys[gone]])

    def encode(self, rows: I64, *, framed: bool) -> tuple[U8, I64]:
        """(buffer, (len(rows),) where each record begins); framed as the arguments of HSET, see `native.rows`.

        rows: a stretch of `self.rows`.
        """
        at = np.empty(len(rows), np.int64)
        out = np.empty(place_records(self.lengths[rows], framed, at), np.uint8)
        block = self.block
        headers = byte_rows(block.headers.reshape(-1, 1))
        full = len(rows) - int(np.count_nonzero(self.bare[rows]))
        encode_records(
            rows[:full], self.keys, headers, byte_rows(block.vectors), byte_rows(block.state),
            block.entries.reshape(-1).view(np.uint8), block.entry_bounds, self.tails.data, self.tails.offsets,
            framed, at[:full], out,
        )  # fmt: skip
        if full < len(rows):
            nothing, none = np.zeros((len(self.keys), 0), np.uint8), np.zeros(len(self.keys) + 1, np.int64)
            encode_records(
                rows[full:], self.keys, headers, nothing, nothing, nothing.reshape(-1), none,
                self.tails.data, self.tails.offsets, framed, at[full:], out,
            )  # fmt: skip
        return out, at

    def records(self) -> tuple[list[int], list[bytes]]:
        """Keys and records to be written, as Python objects."""
        out, at = self.encode(self.rows, framed=False)
        ends = at + self.lengths[self.rows]
        blob = out.tobytes()
        return self.keys[self.rows].tolist(), list(map(blob.__getitem__, map(slice, at.tolist(), ends.tolist())))


def merge(spec: TableSpec, part: Part, stored: Records, clock: int, now_ms: int) -> Merged:
    """Rows of `part.keys` after the call that ends at `clock`. `stored` answers the part's keys, in order.

    1. What isn't let in is left out, see `embedding_store.admission`; forgotten rows begin anew. 2. Own events move
    count, A and B, popularity, and give a row its id if it has none. 3. Missed decay up to `clock`, see
    `embedding_store.decay`; then gradients go through the table's optimizer, or deltas are added; appends into the
    sequence; the newest value stays.
    """
    screened = screen(spec, part, stored, clock)
    part, block = screened.part, screened.block
    h = block.headers
    decay(spec, block.vectors, h["clock"], clock, block.found)
    new_id = (part.counts > 0) & (h["id_len"] == 0)
    observe(
        part.counts, part.positives, clock, spec.gap_rate, float(spec.popularity_half_life),
        h["count"], h["last_seen"], h["gap"], h["popularity"],
    )  # fmt: skip
    touched = part.counts > 0
    if part.gradients is not None:
        touched |= part.gradients.any(axis=1)
        if part.mode == "deltas":
            touched |= _add_deltas(block, part.gradients, part.state_deltas)
        else:
            _optimize(spec, block, part.gradients, clock)
    if spec.kind == "sequence":
        block, lengthened = _append(spec, block, part)
        touched |= lengthened
        h["entries"] = np.diff(block.entry_bounds)
    elif spec.kind == "record":
        block, replaced = replace_values(block, part)
        touched |= replaced
        new_id |= replaced & (h["id_len"] == 0)
        h["entries"] = block.values.lengths
    after = np.where(touched & screened.admitted, np.uint8(ROW), screened.before)
    after[touched & ~screened.admitted] = STUB
    after[screened.wiped & ~touched] = FORGOTTEN
    h["check"][new_id] = part.checks[new_id]
    named = new_id & (after == ROW)
    h["id_len"][named] = part.ids.lengths[named]
    h["clock"] = clock
    h["updated_ms"] = now_ms
    written = touched | screened.wiped
    bare = written & (after != ROW)
    tails = _tails(block, part, named, bare, screened)
    h["entries"] |= np.where(bare, np.uint16(BARE), np.uint16(0)) | np.where(
        screened.fenced, np.uint16(FENCED), np.uint16(0)
    )
    lengths = HEADER_BYTES + tails.lengths
    lengths += np.where(bare, 0, 4 * (spec.dim + spec.state_dim) + ENTRY_BYTES * np.diff(block.entry_bounds))
    lost = screened.wiped & ((screened.before == ROW) | (screened.before == STUB))
    return Merged(
        part.keys, block, tails, lengths, bare, rows_to_write(written, bare), screened.before, after,
        screened.fences, screened.fenced, screened.late, screened.refused, int(lost.sum()),
    )  # fmt: skip


def rows_to_write(written: Bool, bare: Bool) -> I64:
    """Indices of the written, those with a row first."""
    return np.concatenate([np.flatnonzero(written & ~bare), np.flatnonzero(written & bare)])


def _optimize(spec: TableSpec, block: Block, gradients: F32, clock: int) -> None:
    optimizer = spec.optimizer
    if spec.clip_norm:
        clipped = np.empty_like(gradients)
        optimizers.clip(gradients, spec.clip_norm, clipped)
        gradients = clipped
    rate = rate_at(spec, clock)
    if isinstance(optimizer, Adagrad | RowwiseAdagrad):
        step = optimizers.adagrad if isinstance(optimizer, Adagrad) else optimizers.rowwise_adagrad
        step(block.vectors, block.state, gradients, np.float32(rate), np.float32(optimizer.epsilon))
    elif isinstance(optimizer, Adam):
        optimizers.adam(
            block.vectors, block.state, gradients, rate, optimizer.beta_1, optimizer.beta_2, optimizer.epsilon
        )
    elif isinstance(optimizer, Sgd):
        optimizers.sgd(block.vectors, gradients, np.float32(rate))
    else:
        optimizers.add(block.vectors, gradients)


def _add_deltas(block: Block, vectors: F32, state: F32 | None) -> Bool | bool:
    """Add both in place; which rows (n,) a change of state touches."""
    optimizers.add(block.vectors, vectors)
    if state is None:
        return False
    optimizers.add(block.state, state)
    return np.asarray(state.any(axis=1))


def _append(spec: TableSpec, block: Block, part: Part) -> tuple[Block, Bool]:
    n = len(part.keys)
    bounds = np.zeros(n + 1, np.int64)
    order = np.empty(len(part.append_rows), np.int64)
    if not group_appends(part.appends, part.append_rows, bounds, order):
        time, place, item, low_high = part.appends.T
        weight, partition = low_high.view(np.uint64) >> np.uint64(32), low_high & 0xFFFFFFFF
        order = np.lexsort((weight, item.view(np.uint64), place, partition, time, part.append_rows))
    added = np.diff(bounds)
    out_bounds = np.zeros(n + 1, np.int64)
    np.cumsum(np.minimum(np.diff(block.entry_bounds) + added, spec.length), out=out_bounds[1:])
    out = np.empty((out_bounds[-1], 4), np.int64)
    merge_entries(block.entries, block.entry_bounds, part.appends, bounds, order, out_bounds, out)
    return replace(block, entries=out, entry_bounds=out_bounds), added > 0


def _tails(block: Block, part: Part, named: Bool, bare: Bool, screened: Screened) -> Ragged:
    """n tails of records: value with its place in time (record tables), id, fence. Ids of `named` are the part's."""
    n = len(part.keys)
    kept = ~named & ~bare
    id_lengths = np.where(bare, 0, block.headers["id_len"]).astype(np.int64)
    values = np.where(bare, 0, ORDER_BYTES + block.values.lengths) if len(block.orders) else np.zeros(n, np.int64)
    fences = np.where(screened.fenced, FENCE_BYTES, 0)
    offsets = np.zeros(n + 1, np.int64)
    np.cumsum(values + id_lengths + fences, out=offsets[1:])
    out = np.empty(offsets[-1], np.uint8)
    if len(block.orders):
        valued = ~bare
        put_fixed(byte_rows(block.orders.reshape(-1, 1)), valued, offsets[:-1], out)
        values_at = offsets[:-1] + ORDER_BYTES
        put_ragged(block.values.data, block.values.offsets[:-1], block.values.lengths, valued, values_at, out)
    at = offsets[:-1] + values
    put_ragged(block.data, block.id_at, id_lengths, kept, at, out)
    put_ragged(part.ids.data, part.ids.offsets[:-1], id_lengths, named & ~bare, at, out)
    if screened.fenced.any():
        put_fixed(byte_rows(screened.fences.reshape(-1, 1)), screened.fenced, at + id_lengths, out)
    return Ragged(offsets, out)
