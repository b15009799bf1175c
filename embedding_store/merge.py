"""The merge core: what a shard's rows become when it applies its part of a flush. Pure; every backend calls it.

The four cells {stored, missing} × {the client saw it, did not} are one path: a call carries gradients, never vectors,
so what the client saw does not enter; a missing row starts from its initial vector, and two clients that create the
same row at once both add to it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from embedding_store.contract import F32, I64, U64, Bool
from embedding_store.decay import decay, rate_at
from embedding_store.flush_parts import Part
from embedding_store.records import U8, Block, Records, byte_rows, decode, record_lengths
from embedding_store.spec import Adagrad, Adam, RowwiseAdagrad, Sgd, TableSpec
from native import optimizers
from native.ragged import Ragged
from native.rows import encode_records, gather_ragged, place_records
from native.sequences import group_appends, merge_entries
from native.statistics import observe


@dataclass(frozen=True, slots=True)
class Merged:
    """New rows of a shard: `rows` index those of the part's keys that are to be written; `forget` are to be removed."""

    keys: U64  # (n,)
    block: Block  # n rows
    ids: Ragged  # n
    lengths: I64  # (n,) bytes of each record
    rows: I64  # (w,)
    forget: U64  # (f,)

    @property
    def changed(self) -> U64:
        """(w + f,) keys for the change feed."""
        return np.concatenate([self.keys[self.rows], self.forget])

    def encode(self, rows: I64, *, framed: bool) -> tuple[U8, I64]:
        """(buffer, (len(rows),) where each record begins); framed as the arguments of HSET, see `native.rows`."""
        at = np.empty(len(rows), np.int64)
        out = np.empty(place_records(self.lengths[rows], framed, at), np.uint8)
        block = self.block
        encode_records(
            rows, self.keys, byte_rows(block.headers.reshape(-1, 1)), byte_rows(block.vectors), byte_rows(block.state),
            block.entries.reshape(-1).view(np.uint8), block.entry_bounds, self.ids.data, self.ids.offsets,
            framed, at, out,
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

    1. Own events move count, A and B, popularity, and give a row its id if it has none. 2. Missed decay up to `clock`,
    see `embedding_store.decay`; then gradients go through the table's optimizer, or deltas are added; appends into the
    sequence. 3. Forgets remove, what this call wrote included.
    """
    block = decode(spec, part.keys, stored)
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
    ids = _ids(block, part, new_id)
    h["check"][new_id] = part.checks[new_id]
    h["id_len"] = ids.lengths
    h["clock"] = clock
    h["updated_ms"] = now_ms
    if len(part.forget):
        touched &= ~np.isin(part.keys, part.forget)
    lengths = record_lengths(spec, h["entries"].astype(np.int64), ids.lengths)
    return Merged(part.keys, block, ids, lengths, np.flatnonzero(touched), part.forget)


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
    merged = Block(
        block.headers, block.found, block.vectors, block.state, out, out_bounds, block.data, block.id_at
    )  # fmt: skip
    return merged, added > 0


def _ids(block: Block, part: Part, new: Bool) -> Ragged:
    offsets = np.zeros(len(part.keys) + 1, np.int64)
    np.cumsum(np.where(new, part.ids.lengths, block.headers["id_len"]), out=offsets[1:])
    out = np.empty(offsets[-1], np.uint8)
    gather_ragged(block.data, block.id_at, ~new, offsets, out)
    gather_ragged(part.ids.data, part.ids.offsets[:-1], new, offsets, out)
    return Ragged(offsets, out)
