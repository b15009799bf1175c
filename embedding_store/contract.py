"""The store's one contract. Backends differ in speed only; `tests/laws/` holds each of them to it.

Rows of a table are spread over `spec.shards` shards by key. A shard is the unit of atomicity: its rows, its offsets,
its clock and its change feed move together or not at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from embedding_store.spec import TableSpec
from native.ragged import Ragged

U64 = npt.NDArray[np.uint64]
U32 = npt.NDArray[np.uint32]
I64 = npt.NDArray[np.int64]
F32 = npt.NDArray[np.float32]
Bool = npt.NDArray[np.bool_]

ENTRY = np.dtype([("time_ms", "<i8"), ("place", "<i8"), ("item", "<u8"), ("partition", "<u4"), ("weight", "<f4")])
"""A sequence entry, 32 bytes. Order: (time_ms, partition, place); place = record offset · 2^16 + line in the record."""


ORDER = np.dtype([("time_ms", "<i8"), ("place", "<i8"), ("partition", "<u4")])
"""An event's place in time, ordered as entries are."""

Orders = npt.NDArray[np.void]


class Source(NamedTuple):
    """A partition of one incarnation of a topic. A topic made anew under its old name has another id."""

    topic_id: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic_id}:{self.partition}"


class Range(NamedTuple):
    """Record offsets [start, stop) of a source whose events a flush carries."""

    source: Source
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Rows:
    """Reply of `lookup`; row i answers key i. A missing key: initial vector and state, found False, else zeros."""

    vectors: F32  # (n, dim); with the table's decay up to the shard's clock, which is virtual: the row stays as it is
    found: Bool  # (n,)
    clock: I64  # (n,) shard clock at the row's last update
    count: I64  # (n,) events whose own user or item it is: exact
    updated_ms: I64  # (n,) wall clock of the last update, ms since the epoch
    last_seen: I64  # (n,) A of logQ: shard clock at the row's last own event
    gap: F32  # (n,) B of logQ: moving average of events between own events; 0 before the first
    popularity: F32  # (n,) decayed sum of positives as of `last_seen`
    check: U32  # (n,) check bits of the stored id
    ids: Ragged  # n ids in canonical bytes; empty for missing keys and rows without an id
    state: F32 | None = None  # (n, state_dim) on demand

    def part(self, lot: slice) -> Rows:
        """Some that follow one another: views, ids apart."""
        return Rows(
            self.vectors[lot], self.found[lot], self.clock[lot], self.count[lot], self.updated_ms[lot],
            self.last_seen[lot], self.gap[lot], self.popularity[lot], self.check[lot],
            self.ids.take(np.arange(*lot.indices(len(self.found)))), None if self.state is None else self.state[lot],
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Histories:
    """Reply of `histories`: entries of key i are `entries[offsets[i]:offsets[i + 1]]`, oldest first."""

    offsets: I64  # (n + 1,)
    entries: npt.NDArray[np.void]  # (entries,) of dtype ENTRY
    found: Bool  # (n,)
    clock: I64  # (n,)
    count: I64  # (n,)
    updated_ms: I64  # (n,)


@dataclass(frozen=True, slots=True)
class Values:
    """Reply of `values`; row i answers key i."""

    values: Ragged  # n values; empty for missing keys
    orders: Orders  # (n,) of dtype ORDER: of the event that wrote the value; time_ms -2^63 where there is none
    found: Bool  # (n,)
    clock: I64  # (n,)
    count: I64  # (n,)
    updated_ms: I64  # (n,)
    ids: Ragged  # n


Mode = Literal["gradients", "deltas"]


@dataclass(frozen=True, slots=True)
class OwnEvents:
    """Own events one by one; sums per key are a flush's counts and positives."""

    rows: I64  # (e,) index into the flush's keys
    orders: Orders  # (e,) of dtype ORDER
    positives: F32  # (e,)


@dataclass(frozen=True, slots=True)
class Flush:
    """What one `apply` carries for one table; the store splits it by shard. Keys are unique.

    A key is stored if it has an own event (`counts` > 0, an append or a value), or a gradient or delta that is not all
    zero; see `EmbeddingStore.apply` for keys that are forgotten, evicted, not admitted yet or taken by another id.

    With `own_events` the store knows the place in time of each own event, and counts those that a forget of their key
    came after out. Without, an own event is newer than every forget that was applied before it.

    mode `gradients`: the table's optimizer runs in the store, with its schedule and clipping. Mode `deltas`: several
    passes were learned on the caller's copies, and the call carries what they changed. Stored + delta, or initial +
    delta where nothing is stored, so that the deltas of concurrent callers add up: Adagrad's accumulators are sums of
    squares and do; Adam's moments are not, and Adam is refused. Decay is the store's alone in both: a caller's copy is
    of one clock, and no delta may carry what the clock takes off.
    """

    generation: int
    ranges: tuple[Range, ...]  # every source whose events contributed; empty is an error
    events: int  # usable events in the ranges: what the clock advances by
    event_time_ms: int  # newest event time in the ranges, 0 if they hold no usable event
    produced_ms: int  # newest record timestamp in the ranges, 0 likewise
    now_ms: int  # the caller's wall clock
    keys: U64  # (n,) unique
    counts: I64  # (n,) own events of each key in the ranges
    positives: F32  # (n,) own positive events (label > 0), weighted
    checks: U32  # (n,)
    ids: Ragged  # n ids; empty where the key has no own event
    gradients: F32 | None = None  # (n, dim) summed per key, or in mode deltas the change of vectors; not for sequences
    appends: npt.NDArray[np.void] | None = None  # (m,) of dtype ENTRY, any order; sequence tables only
    append_rows: I64 | None = None  # (m,) index into keys of each append
    mode: Mode = "gradients"
    state_deltas: F32 | None = None  # (n, state_dim) change of optimizer state; in mode deltas only, for state there is
    values: Ragged | None = None  # m values, any order, the largest of a key wins; record tables only
    value_orders: Orders | None = None  # (m,) of dtype ORDER
    value_rows: I64 | None = None  # (m,) index into keys
    own_events: OwnEvents | None = None  # every own event in `counts`, if their places in time are known
    forget: U64 = field(default_factory=lambda: np.zeros(0, np.uint64))  # (f,) keys to forget, repeats allowed
    forget_orders: Orders | None = None  # (f,) of dtype ORDER: the tombstones'; None: only what is applied is forgotten
    forget_checks: U32 | None = None  # (f,) check bits of the ids to forget; None: whatever id the key is of


Outcome = Literal["applied", "duplicate", "conflict"]


@dataclass(frozen=True, slots=True)
class ShardReply:
    """What one shard did: `applied` everything, or changed nothing.

    `duplicate`: it held stop or more of every range. `conflict`: anything else, an unset source included.
    """

    outcome: Outcome
    clock: int
    offsets: Mapping[Source, int]  # as stored after the call, for the flush's sources that are set


@dataclass(frozen=True, slots=True)
class ShardStatus:
    clock: int  # usable events applied
    generation: int
    rows: int
    event_time_ms: int  # newest event time applied: the `as_of` of everything read from the shard
    produced_ms: int  # newest record timestamp applied
    skipped: int  # records jumped over by `seek`
    offsets: Mapping[Source, int]
    stubs: int  # keys that are counted and not admitted yet
    remembered: int  # keys that were forgotten or evicted and have no row since
    evicted: int  # rows that made room for others, since the table was created; likewise the following
    expired: int  # rows that were not updated for ttl_s
    forgotten: int  # rows that a forget removed
    late: int  # own events older than a forget, and gradients for remembered keys: not applied
    refused: int  # own events and forgets of an id whose key is taken by another id


@dataclass(frozen=True, slots=True)
class Cursor:
    """A place in a table's change feed; opaque to callers. Positions of another server run force a rescan."""

    run_id: str
    positions: tuple[str, ...]  # per shard


@dataclass(frozen=True, slots=True)
class Changes:
    """Rows changed since a cursor, as they are now; applying the same changes again is harmless."""

    cursor: Cursor
    rescan: bool  # True: `keys` is the whole table, whatever else a mirror holds is gone
    keys: U64  # (n,) unique
    rows: Rows  # n rows, all found
    deleted: U64
    clock: tuple[int, ...]  # per shard
    event_time_ms: int  # the table reflects the stream up to here: the newest event time applied, lowest over shards
    produced_ms: int  # the newest record timestamp applied, lowest over shards


class EmbeddingStore(Protocol):
    """A parameter server for embedding, sequence and dense tables. Thread-safe unless a backend says otherwise.

    Errors are those of `embedding_store.errors`; a call that raises BadRequest, UnknownTable or SpecError has changed
    nothing. After GenerationError, StoreUnavailable or StoreFull from `apply` each shard has applied all of it or none.
    """

    def create(self, spec: TableSpec) -> None:
        """Register a table. Idempotent. Raises SpecConflict, with both values, if it exists with another spec."""

    def spec(self, table: str) -> TableSpec:
        """The registered declaration. Raises UnknownTable."""

    def generation(self) -> int:
        """The store's generation; rises when the store is restored or rewound. Flushes must carry it.

        Raises StoreBeingRestored.
        """

    def raise_generation(self) -> int:
        """Fence off all flushes in flight, for after a restore: the new generation, now set in every shard.

        Change feeds begin anew: every cursor from before is told to rescan, and whoever waits for changes wakes up.
        """

    def lookup(self, table: str, keys: U64, *, with_state: bool = False, with_ids: bool = True) -> Rows:
        """Rows of an embedding or dense table, in the order of `keys` (repeats allowed). Pure: never writes.

        with_ids False: `ids` is n empty ones, and the store need not fetch them: for who knows them, as a trainer does.
        """

    def histories(self, table: str, keys: U64) -> Histories:
        """Entries of a sequence table, oldest first, in the order of `keys`. Pure: never writes."""

    def histories_and_rows(
        self, sequences: str, table: str, keys: U64, *, with_state: bool = False
    ) -> tuple[Histories, Rows]:
        """`histories` of table `sequences`, and `lookup` without ids of `table`, for the same keys. Pure.

        Not of one moment: each shard of either answers for itself.
        """

    def values(self, table: str, keys: U64) -> Values:
        """Values of a record table, in the order of `keys`. Pure: never writes."""

    def taken(self, table: str, keys: U64, checks: U32, ids: Ragged) -> Bool:
        """(n,) whether a key's row, or its count before admission, is of another id than the given. Pure.

        Of another id: other check bits, or other bytes. Integer ids never are: their keys are themselves.
        """

    def apply(self, table: str, flush: Flush) -> tuple[ShardReply, ...]:
        """Apply to every shard of the table, rows or no rows. Atomic over each shard; one reply per shard.

        In a shard: 1. generation and ranges are compared with what is stored; 2. what is refused, late or forgotten is
        left out of the rest, see below; 3. own-event counts, statistics and ids; 4. missed decay, then gradients
        through the table's optimizer, or deltas; appends; values; 5. rows that the call leaves over the table's limits
        are evicted, a bounded number; 6. offsets, clock, change feed.

        Refused: all of a key's part whose row is of another id (see `taken`). Forgotten: the row, with what came before
        the tombstone in this call: own events of its partition with a smaller place, own events with a smaller order,
        and all gradients. Late, for as long as the shard remembers the forget (`remember_events`): own events with a
        smaller order than the tombstone, and gradients of a key that has no row and no newer own event. An evicted or
        expired key is remembered likewise, but any own event applied later is newer. Not admitted: until a key has had
        `admit_after` own events it is counted, reads as its initial vector and takes no gradients.
        """

    def apply_all(self, flushes: Mapping[str, Flush]) -> dict[str, tuple[ShardReply, ...]]:
        """`apply` of one flush per table; replies by table. For calls that need nothing of one another's replies.

        Atomic over each shard, and over nothing larger: in no order, and whatever another shard or table answers, a
        conflict too. Raises as `apply`; after BadRequest, UnknownTable or SpecError for any of them nothing has
        changed, after another error each shard of each table has applied all of its part or none.
        """

    def seek(self, table: str, shard: int, source: Source, expected: int | None, new: int, reason: str) -> None:
        """Compare-and-set of a shard's offset; the only way to jump. Records what was skipped. Raises SeekConflict."""

    def status(self, table: str) -> tuple[ShardStatus, ...]:
        """Clock, offsets, times and row count of each shard, each read atomically."""

    def changes(self, table: str, cursor: Cursor | None) -> Changes:
        """Rows changed since `cursor`; None scans the table. Pure. feed + scan = table."""

    def wait_for_changes(self, tables: Sequence[str], cursors: Sequence[Cursor], timeout_s: float) -> bool:
        """Block until one of the tables has a change after its cursor (True) or the time is over (False)."""

    def run_id(self) -> str:
        """Identity of the server run; another value means that the last second may have been lost."""

    def publish_model(self, document: bytes) -> None:
        """Store the model specification that serving reads. Last writer wins."""

    def published_model(self) -> bytes | None:
        """The document stored by `publish_model`, or None."""

    def exclude(self, ranges: Sequence[Range]) -> None:
        """Replace the ranges of records that trainers leave out.

        To be published before the generation is raised, so that every flush of the new generation knows them. Raises
        BadRequest.
        """

    def excluded(self) -> tuple[Range, ...]:
        """The ranges stored by `exclude`, sorted, none touching another. Read after `generation`."""

    def close(self) -> None:
        """Release connections. Idempotent."""
