"""What a worker has learned and not yet applied: the bp_v2 accumulator between it and the store."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from embedding_store.contract import ENTRY, F32, I64, ORDER, U32, U64, Flush, Mode, Orders, OwnEvents, Range, Source
from embedding_store.transitions import TABLE as TRANSITIONS
from ingest.columns import Events, MicroBatch, Partition, Tombstones
from native.aggregate import aggregate_parts, moved_rows
from native.features import ITEM, NO_FEATURES, USER, FeatureSchema
from native.key_index import unique_keys
from native.ragged import Ragged, concatenate
from trainer.examples import Past, positives
from trainer.features import Recorded, recorded_of
from trainer.learner import Step

Entries = npt.NDArray[np.void]
Number = TypeVar("Number", bound=np.generic)


Clocks = tuple[int, ...]
"""The item table's clock on each of its shards."""


@dataclass(frozen=True, slots=True)
class Learned:
    """A micro-batch that waits to be applied."""

    events: Events  # those that are stored
    step: Step | None
    read_at: Clocks  # as of the rows that it was learned on, or earlier; empty if it has no step
    before: int  # pending positives of the micro-batches before it
    recorded: int  # parts of `Pending.recorded` up to its own


class Pending:
    """Micro-batches since the last flush. Gradients of a key add up; counts and appends are those of the events."""

    def __init__(self, dim: int, state_dim: int | None = None, features: FeatureSchema = NO_FEATURES) -> None:
        """state_dim: of the deltas that steps carry behind their `dim` columns; None: they carry gradients."""
        self._dim, self._width, self._schema = dim, dim + (state_dim or 0), features
        self._mode: Mode = "gradients" if state_dim is None else "deltas"
        self.version = 0  # moves with every change: what was made of this can be kept until then
        self.clear()

    def clear(self) -> None:
        """Forget everything: after a flush, or because the store moved under us."""
        self.batches = 0
        self.events = 0
        self.event_time_ms = self.produced_ms = 0
        self.ranges: dict[Partition, tuple[int, int]] = {}
        self.must_flush = False
        self.begun_s = 0.0  # time.monotonic() of the first micro-batch
        self.learned: list[Learned] = []
        self.recorded: list[Recorded] = []  # what is to be kept of ids' features
        self.version += 1
        self.users: U64 = np.zeros(0, np.uint64)
        self.entries: Entries = np.zeros(0, ENTRY)
        self._after: U64 = np.zeros(0, np.uint64)
        self._next: Entries = np.zeros(0, ENTRY)  # what came after each of them
        self._events: list[Events] = []
        self._own: dict[str, _OwnEvents] = {}  # of all events, once asked for
        self._orders: Orders | None = None  # likewise
        self._forget: dict[str, list[Tombstones]] = {"item": [], "user": []}

    def add(
        self,
        batch: MicroBatch,
        step: Step | None,
        kept: Events | None = None,
        read_at: Clocks = (),
        past: Past | None = None,
    ) -> None:
        """Take in a micro-batch and its step. None, or a step that isn't finite, adds no gradients (quarantine).

        kept: those of the batch's events that are stored, if not all. The others move the clock all the same: it must
        not depend on what the store holds of other ids. read_at: see `Learned`. past: of the kept events, where
        transitions between items are stored.
        """
        if not self.batches:
            self.begun_s = time.monotonic()
        self.batches += 1
        self.version += 1
        before = len(self.users)
        for partition, (start, stop) in batch.ranges.items():
            self.ranges[partition] = (self.ranges.get(partition, (start, stop))[0], stop)
        events = batch.events
        stored = events if kept is None else kept
        self.recorded += recorded_of(stored, batch.profiles, self._schema)
        if len(events):
            self.events += len(events)
            self.event_time_ms = max(self.event_time_ms, int(events.time_ms.max()))
            self.produced_ms = max(self.produced_ms, int(events.produced_ms.max()))
            events = stored
            self._events.append(events)
            self._own.clear()
            self._orders = None
            is_positive = events.label > 0
            self.users = np.concatenate([self.users, events.user_key[is_positive]])
            self.entries = np.concatenate([self.entries, positives(events)])
            if past is not None:
                near = past.near[is_positive]
                of, place = np.nonzero(near)
                came = positives(events)[of]
                came["weight"] = near[of, place]
                self._after = np.concatenate([self._after, past.recent[is_positive][of, place]])
                self._next = np.concatenate([self._next, came])
            self.learned.append(Learned(events, step, read_at, before, len(self.recorded)))
        if len(batch.forget_users) or len(batch.forget_items):
            self._forget["user"].append(batch.forget_users)
            self._forget["item"].append(batch.forget_items)
            self.must_flush = True  # later events of a forgotten id must find it gone

    def relearned(self, i: int, step: Step | None, read_at: Clocks) -> None:
        """Micro-batch `i` of `learned` has another step now, or none: its events are counted all the same."""
        self.learned[i] = replace(self.learned[i], step=step, read_at=read_at)
        self.version += 1

    def staleness(self, clocks: Clocks) -> list[int]:
        """Events that others have applied since each of `learned` was read, on the shard where it is most."""
        return [
            max((now - then for now, then in zip(clocks, learned.read_at, strict=True)), default=0)
            if learned.read_at
            else 0
            for learned in self.learned
        ]

    def flush(
        self,
        table: str,
        generation: int,
        starts: Mapping[Partition, int],
        now_ms: int,
        scales: Sequence[float] | None = None,
    ) -> Flush:
        """The call for any table but `dense`. starts: where the table's ranges begin.

        scales: what the gradients of each of `learned` are multiplied by.
        """
        if table == TRANSITIONS:
            return self._transitions(generation, starts, now_ms)
        side = "item" if table.startswith("item") else "user"
        if table == "feature":
            return self._taught(generation, starts, now_ms, scales)
        if table in _RECORDS:
            return self._told(side, _RECORDS[table], generation, starts, now_ms)
        own = self._own.get(side)
        if own is None:
            own = self._own[side] = _OwnEvents(self._events, side)
        if self._orders is None:
            self._orders = _orders(self._events)
        forget = self._forget[side]
        ranges = self._ranges(starts)
        gradients: F32 | None = None
        state: F32 | None = None
        keys, rows = own.keys, np.arange(len(own.keys))
        if table != "history":
            keys, gradients = self._summed(side, own.keys, scales)
            if self._width > self._dim:
                gradients, state = (np.ascontiguousarray(p) for p in np.split(gradients, [self._dim], axis=1))
        n = len(keys)
        return Flush(
            generation=generation,
            ranges=ranges,
            events=self.events,
            event_time_ms=self.event_time_ms,
            produced_ms=self.produced_ms,
            now_ms=now_ms,
            keys=keys,
            counts=_padded(own.counts, rows, n),
            positives=_padded(own.positives, rows, n),
            checks=_padded(own.checks, rows, n),
            ids=_padded_ids(own.ids, n),
            gradients=gradients,
            mode="gradients" if gradients is None else self._mode,
            state_deltas=state,
            appends=self.entries if table == "history" else None,
            append_rows=own.of_positives() if table == "history" else None,
            own_events=own.one_by_one(self._orders),
            forget=_column(forget, "keys", np.uint64),
            forget_orders=_orders(forget),
            forget_checks=_column(forget, "checks", np.uint32),
        )

    def _ranges(self, starts: Mapping[Partition, int]) -> tuple[Range, ...]:
        return tuple(Range(Source(*p), starts[p], stop) for p, (_, stop) in sorted(self.ranges.items()))

    def _transitions(self, generation: int, starts: Mapping[Partition, int], now_ms: int) -> Flush:
        """The call for the table of transitions: its keys are items that something came after, without ids."""
        keys, numbers = unique_keys(self._after)
        n = len(keys)
        forget = self._forget["item"]
        return Flush(
            generation=generation,
            ranges=self._ranges(starts),
            events=self.events,
            event_time_ms=self.event_time_ms,
            produced_ms=self.produced_ms,
            now_ms=now_ms,
            keys=keys,
            counts=np.bincount(numbers, minlength=n).astype(np.int64),
            positives=np.zeros(n, np.float32),
            checks=np.zeros(n, np.uint32),
            ids=_padded_ids(Ragged.empty(), n),
            appends=self._next,
            append_rows=numbers,
            own_events=OwnEvents(numbers, _places(self._next), np.zeros(len(numbers), np.float32)),
            forget=_column(forget, "keys", np.uint64),
            forget_orders=_orders(forget),
        )

    def _taught(
        self, generation: int, starts: Mapping[Partition, int], now_ms: int, scales: Sequence[float] | None
    ) -> Flush:
        """Table `feature`: its rows have no events of their own, and nobody forgets them."""
        state: F32 | None = None
        keys, gradients = self._summed("feature", np.zeros(0, np.uint64), scales)
        if self._width > self._dim:
            gradients, state = (np.ascontiguousarray(p) for p in np.split(gradients, [self._dim], axis=1))
        n = len(keys)
        return Flush(
            generation=generation,
            ranges=self._ranges(starts),
            events=self.events,
            event_time_ms=self.event_time_ms,
            produced_ms=self.produced_ms,
            now_ms=now_ms,
            keys=keys,
            counts=np.zeros(n, np.int64),
            positives=np.zeros(n, np.float32),
            checks=np.zeros(n, np.uint32),
            ids=_padded_ids(Ragged.empty(), n),
            gradients=gradients,
            mode=self._mode,
            state_deltas=state,
        )

    def _told(self, name: str, side: int, generation: int, starts: Mapping[Partition, int], now_ms: int) -> Flush:
        """A table of records: the newest of each id stays, in the store as here."""
        told, forget = [part for part in self.recorded if part.side == side], self._forget[name]
        keys, numbers = unique_keys(np.concatenate([np.zeros(0, np.uint64), *(part.keys for part in told)]))
        first = _first_of(numbers, len(keys))
        ids = concatenate([part.ids for part in told])
        return Flush(
            generation=generation,
            ranges=self._ranges(starts),
            events=self.events,
            event_time_ms=self.event_time_ms,
            produced_ms=self.produced_ms,
            now_ms=now_ms,
            keys=keys,
            counts=np.zeros(len(keys), np.int64),
            positives=np.zeros(len(keys), np.float32),
            checks=np.concatenate([np.zeros(0, np.uint32), *(part.checks for part in told)])[first],
            ids=ids.take(first) if len(keys) else Ragged.empty(),
            values=concatenate([part.values.stored(self._schema) for part in told]),
            value_orders=np.concatenate([np.zeros(0, ORDER), *(part.orders for part in told)]),
            value_rows=numbers,
            forget=_column(forget, "keys", np.uint64),
            forget_orders=_orders(forget),
            forget_checks=_column(forget, "checks", np.uint32),
        )

    def _summed(self, side: str, own: U64, scales: Sequence[float] | None) -> tuple[U64, F32]:
        """(keys, gradients summed per key): the own events' keys first, then those with nothing but a gradient."""
        parts = []
        for i, learned in enumerate(self.learned):
            step = learned.step
            if step is not None and step.finite:
                scale = 1.0 if scales is None else scales[i]
                keys, gradients = step.of(side)
                parts.append((keys, gradients if scale == 1.0 else _scaled(gradients, scale, self._dim)))
        if len(parts) == 1 and np.array_equal(parts[0][0][: len(own)], own):
            keys, sums = parts[0]  # keys of a step are different, and begin with those of its events
        else:
            keys, sums = aggregate_parts(own, parts, self._width)
        keep = np.ones(len(keys), bool)
        if len(keys) > len(own):
            moved_rows(sums, len(own), keep)
        return (keys, sums) if keep.all() else (keys[keep], sums[keep])


class _OwnEvents:
    """Events per distinct id of one side, columnar."""

    def __init__(self, events: list[Events], side: str) -> None:
        self.keys, numbers = unique_keys(_column(events, f"{side}_key", np.uint64))
        self._numbers = numbers
        n = len(self.keys)
        label, weight = _column(events, "label", np.float32), _column(events, "weight", np.float32)
        self.counts: I64 = np.bincount(numbers, minlength=n).astype(np.int64)
        self._is_positive = label > 0
        self._weights = weight * self._is_positive
        self.positives: F32 = np.bincount(numbers, weights=self._weights, minlength=n).astype(np.float32)
        first = _first_of(numbers, n)
        self.checks: U32 = _column(events, f"{side}_check", np.uint32)[first]
        columns = [getattr(e, f"{side}_id") for e in events]
        ids = columns[0] if len(columns) == 1 else concatenate(columns)
        self.ids: Ragged = ids.take(first) if n else Ragged.empty()

    def one_by_one(self, orders: Orders) -> OwnEvents:
        """The events, each with its place in time (e,); rows are numbers of `keys`."""
        return OwnEvents(self._numbers, orders, self._weights)

    def of_positives(self) -> I64:
        """Number of each positive event's id."""
        return self._numbers[self._is_positive]


_RECORDS = {"item_features": ITEM, "user_features": USER}


def _first_of(numbers: I64, n: int) -> I64:
    """(n,) where each number comes first."""
    first = np.zeros(n, np.int64)
    first[numbers[::-1]] = np.arange(len(numbers))[::-1]
    return first


def _places(entries: Entries) -> Orders:
    orders = np.empty(len(entries), ORDER)
    for name in ORDER.names or ():
        orders[name] = entries[name]
    return orders


def _orders(columns: list[Events] | list[Tombstones]) -> Orders:
    times = _column(columns, "time_ms", np.int64)
    orders = np.empty(len(times), ORDER)
    orders["time_ms"] = times
    orders["place"], orders["partition"] = _column(columns, "place", np.int64), _column(columns, "partition", np.uint32)
    return orders


def _column(events: list[Events] | list[Tombstones], name: str, dtype: type[Number]) -> npt.NDArray[Number]:
    if len(events) == 1:
        only: npt.NDArray[Number] = getattr(events[0], name)
        return only
    return np.concatenate([np.zeros(0, dtype), *(getattr(e, name) for e in events)])


def _padded(column: npt.NDArray[Number], rows: I64, n: int) -> npt.NDArray[Number]:
    if n == len(column):
        return column  # `rows` are all
    out = np.zeros(n, column.dtype)
    out[rows] = column
    return out


def _padded_ids(ids: Ragged, n: int) -> Ragged:
    return Ragged(np.concatenate([ids.offsets, np.full(n - len(ids), ids.offsets[-1])]), ids.data)


def _scaled(gradients: F32, scale: float, dim: int) -> F32:
    """The first `dim` columns times `scale`: sums of squares behind them say how large gradients were, not steps."""
    out = gradients.copy()
    out[:, :dim] *= np.float32(scale)
    return out
