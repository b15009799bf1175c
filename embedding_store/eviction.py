"""Which keys a shard lets go of, and the indexes it finds them by. Pure; every backend calls it.

Each backend keeps, in the same atomic unit as the rows, an index per standing: keys in the order of (score, bytes of
the key). Scores: rows and stubs, the shard's wall clock at their last update, which never goes back; marks, the shard's
event clock when the key was evicted or forgotten. A call reads a short head of each index, and where that does not tell
all that has to go a longer one, of the most that it may remove: its work is bounded by its own size.

    updates    rows, if the table has ttl_s or max_rows. Above max_rows / shards the oldest go; so do those older than
               ttl_s. At most BATCH more than the call created: max_rows is never exceeded, expiry catches up.
    stubs      keys that are counted and not admitted, if the table has admit_after. Above max_stubs / shards the
               oldest are dropped, and their counts with them.
    evicted    marks of evicted and expired keys, above MAX_EVICTED or older than remember_events dropped.
    forgotten  marks of forgotten keys, above MAX_FORGOTTEN or older than remember_events dropped.

A row or stub that goes with a fence leaves a mark with the fence, remembered from then on, however old the fence; a row
without one a mark of its eviction; a stub without one nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from embedding_store.contract import I64, U64, Bool
from embedding_store.flush_parts import Part
from embedding_store.merge import Merged, rows_to_write
from embedding_store.records import Records, byte_rows, decode
from embedding_store.spec import TableSpec
from embedding_store.standing import EVICTED, FORGOTTEN, MISSING, ROW, STUB
from native.ragged import Ragged
from native.rows import BARE, FENCE_BYTES, FENCED, HEADER, HEADER_BYTES, put_ragged

BATCH = 64
"""Keys of each index that a call may remove beyond those that it adds."""

MAX_EVICTED = 1 << 17
"""Evicted keys that a shard remembers: about 15 MB."""

MAX_FORGOTTEN = 1 << 20
"""Forgotten keys without a row that a shard remembers: about 150 MB, reached by a million of them only."""

INDEXES = ("updates", "stubs", "evicted", "forgotten")
_STANDING = {"updates": ROW, "stubs": STUB, "evicted": EVICTED, "forgotten": FORGOTTEN}


class Head(NamedTuple):
    """The first keys of an index, and how many it has."""

    keys: U64  # (k,)
    scores: I64  # (k,)
    size: int

    @classmethod
    def empty(cls) -> Head:
        return cls(np.zeros(0, np.uint64), np.zeros(0, np.int64), 0)


def head_lengths(spec: TableSpec, part: Part) -> dict[str, int]:
    """The indexes that applying a part reads, and how many of their first keys to begin with."""
    lengths: dict[str, int] = {}
    if spec.ttl_s or spec.max_rows:
        lengths |= {"updates": BATCH, "evicted": BATCH}
    if spec.admit_after:
        lengths |= {"stubs": BATCH}
    return lengths | {"forgotten": BATCH + 2 * len(part.forget_rows)}


@dataclass(frozen=True, slots=True)
class Leaving:
    """Keys that a call makes leave an index, of its own or not."""

    rows: U64
    expired: int  # how many of the rows are older than ttl_s
    stubs: U64
    marks: dict[str, U64]  # per index
    longer: dict[str, int]  # heads that were too short to tell, and how long they have to be; empty: all is told

    def outside(self, merged: Merged) -> U64:
        """Keys that the call did not read, and whose records decide what they leave behind."""
        keys = np.concatenate([self.rows, self.stubs])
        return keys[~_among(keys, merged.keys)]


def leaving(spec: TableSpec, merged: Merged, heads: Mapping[str, Head], clock: int, now_ms: int) -> Leaving:
    """What is over the table's limits after a call that ends at `clock`; ask again with `longer` heads, if any."""
    longer: dict[str, int] = {}
    written = merged.written
    moved = merged.keys[written]
    rows, expired, stubs = moved[:0], 0, moved[:0]
    if "updates" in heads:
        index = _Index(heads["updates"], merged, ROW, written, moved, now_ms)
        over = index.over(spec.max_rows // spec.shards) if spec.max_rows else 0
        due = index.until(now_ms - round(1000 * spec.ttl_s)) if spec.ttl_s else -1
        rows = index.first(max(over, due))
        if index.hides(over, due):
            longer["updates"] = BATCH + len(merged.keys)
        expired = max(0, min(due, len(rows)))
    if "stubs" in heads:
        index = _Index(heads["stubs"], merged, STUB, written, moved, now_ms)
        over = index.over(spec.max_stubs // spec.shards)
        stubs = index.first(over)
        if index.hides(over, -1):
            longer["stubs"] = BATCH + len(merged.keys)
    marks = {}
    for name, limit in (("evicted", MAX_EVICTED), ("forgotten", MAX_FORGOTTEN)):
        if name in heads:
            index = _Index(heads[name], merged, _STANDING[name], np.zeros_like(written), moved, clock)
            over, due = index.over(limit), index.until(clock - spec.remember_events)
            marks[name] = index.first(max(over, due))
            if index.hides(over, due):
                longer[name] = BATCH + len(merged.keys)
    return Leaving(rows, expired, stubs, marks, longer)


class _Index:
    """The first keys of an index as they are after a call, its own keys of `standing` included."""

    def __init__(self, head: Head, merged: Merged, standing: int, written: Bool, moved: U64, score: int) -> None:
        stays = ~_among(head.keys, moved)
        own = merged.keys[written & (merged.after == standing)]
        keys = np.concatenate([head.keys[stays], own])
        scores = np.concatenate([head.scores[stays], np.full(len(own), score, np.int64)])
        order = np.lexsort((keys.byteswap(), scores))
        self._keys, self._scores = keys[order], scores[order]
        entered = int(((merged.after == standing) & (merged.before != standing)).sum())
        left = int(((merged.before == standing) & (merged.after != standing)).sum())
        self._size = head.size + entered - left
        self._most = BATCH + entered
        self._stay = int(stays.sum())
        self._more = head.size > len(head.keys) and len(head.keys) < BATCH + len(merged.keys)

    def over(self, limit: int) -> int:
        return max(0, self._size - limit)

    def until(self, score: int) -> int:
        return int(np.searchsorted(self._scores, score, "right"))

    def hides(self, over: int, due: int) -> bool:
        """Whether keys behind the head may have to go. due: how many of the head's are due, -1 if that is no reason."""
        wanted = self._most if due >= self._stay else over
        return self._more and min(self._most, wanted) > self._stay

    def first(self, n: int) -> U64:
        return self._keys[: min(n, self._most)]


@dataclass(frozen=True, slots=True)
class Settled:
    """A call's whole effect on a shard's records and indexes."""

    merged: Merged
    marks: list[tuple[int, bytes]]  # records of keys outside the call, to be written: key, record
    gone: U64  # keys to be removed
    joins: dict[str, tuple[U64, I64]]  # per index: keys and scores
    leaves: dict[str, U64]  # per index
    changed: U64  # for the change feed
    evicted: int
    expired: int


def settle(spec: TableSpec, merged: Merged, going: Leaving, stored: Records, clock: int, now_ms: int) -> Settled:
    """`stored` answers `going.outside(merged)`."""
    outside = going.outside(merged)
    merged, dropped = _demoted(merged, going)
    joins, leaves = _moves(spec, merged, clock, now_ms)
    marks, gone, marked = _outside(spec, going, outside, stored, clock, now_ms)
    for name, (keys, scores) in marked.items():
        mine = joins.get(name, (keys[:0], scores[:0]))
        joins[name] = (np.concatenate([mine[0], keys]), np.concatenate([mine[1], scores]))
    for name, keys in (("updates", going.rows), ("stubs", going.stubs), *going.marks.items()):
        if len(keys):
            leaves[name] = np.union1d(leaves[name], keys) if name in leaves else keys
    return Settled(
        merged=merged,
        marks=marks,
        gone=np.concatenate([dropped, gone, *going.marks.values()]),
        joins=joins,
        leaves=leaves,
        changed=np.concatenate([merged.changed, outside[_among(outside, going.rows)]]),
        evicted=len(going.rows) - going.expired,
        expired=going.expired,
    )


def _among(keys: U64, of: U64) -> Bool:
    """np.isin, which costs the same where there is nothing to find: most calls make nothing leave."""
    return np.isin(keys, of) if len(keys) and len(of) else np.zeros(len(keys), np.bool_)


def _demoted(merged: Merged, going: Leaving) -> tuple[Merged, U64]:
    """The call's own keys that have to go at once, as marks; and those whose records have to be removed."""
    rows, stubs = _among(merged.keys, going.rows), _among(merged.keys, going.stubs)
    if not (rows | stubs).any():
        return merged, merged.keys[:0]
    after, bare, written = merged.after.copy(), merged.bare.copy(), merged.written
    after[rows] = EVICTED
    after[stubs] = MISSING
    out = rows | stubs
    after[out & merged.fenced] = FORGOTTEN
    headers = merged.block.headers
    clocks, times = headers["clock"][out], headers["updated_ms"][out]
    headers[out] = 0
    headers["clock"][out], headers["updated_ms"][out] = clocks, times
    headers["entries"][out] = np.where(merged.fenced[out], BARE | FENCED, BARE)
    bare[out] = True
    written |= out
    written[after == MISSING] = False
    kept = np.where(out, np.where(merged.fenced, FENCE_BYTES, 0), merged.tails.lengths)
    offsets = np.zeros(len(kept) + 1, np.int64)
    np.cumsum(kept, out=offsets[1:])
    data = np.empty(offsets[-1], np.uint8)
    put_ragged(
        merged.tails.data, merged.tails.offsets[1:] - kept, kept, np.ones(len(kept), np.bool_), offsets[:-1], data
    )
    tails = Ragged(offsets, data)
    lengths = np.where(out, HEADER_BYTES + kept, merged.lengths)
    dropped = merged.keys[(after == MISSING) & (merged.before != MISSING)]
    return replace(
        merged, after=after, bare=bare, tails=tails, lengths=lengths, rows=rows_to_write(written, bare)
    ), dropped  # fmt: skip


def _moves(
    spec: TableSpec, merged: Merged, clock: int, now_ms: int
) -> tuple[dict[str, tuple[U64, I64]], dict[str, U64]]:
    """(joins, leaves) of the call's own keys."""
    joins, leaves = {}, {}
    written = merged.written
    for name in INDEXES:
        if name == "updates" and not (spec.ttl_s or spec.max_rows):
            continue
        standing = _STANDING[name]
        enters = written & (merged.after == standing)
        if enters.any():
            keys = merged.keys[enters]
            joins[name] = (keys, np.full(len(keys), clock if name in ("evicted", "forgotten") else now_ms, np.int64))
        exits = (merged.before == standing) & (merged.after != standing)
        if exits.any():
            leaves[name] = merged.keys[exits]
    return joins, leaves


def _outside(
    spec: TableSpec, going: Leaving, keys: U64, stored: Records, clock: int, now_ms: int
) -> tuple[list[tuple[int, bytes]], U64, dict[str, tuple[U64, I64]]]:
    """(marks to be written, records to be removed, joins of indexes) for `keys`, which the call did not read."""
    if not len(keys):
        return [], keys, {}
    block = decode(spec, keys, stored, with_state=False)
    fences: npt.NDArray[np.void] = block.fences()
    fenced = ((block.stored["entries"] & FENCED) != 0) & (fences["clock"] > clock - spec.remember_events)
    marked = fenced | _among(keys, going.rows)
    header = np.zeros(len(keys), HEADER)
    header["clock"], header["updated_ms"] = clock, now_ms
    header["entries"] = np.where(fenced, BARE | FENCED, BARE)
    heads, tails = byte_rows(header.reshape(-1, 1)), byte_rows(fences.reshape(-1, 1))
    marks = [
        (int(keys[i]), heads[i].tobytes() + (tails[i].tobytes() if fenced[i] else b""))
        for i in np.flatnonzero(marked).tolist()
    ]
    joins = {}
    for name, chosen in (("evicted", marked & ~fenced), ("forgotten", fenced)):
        if chosen.any():
            joins[name] = (keys[chosen], np.full(int(chosen.sum()), clock, np.int64))
    return marks, keys[~marked], joins
