"""Every item row in memory, kept fresh by the change feed."""

from __future__ import annotations

import copy
import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from embedding_store import mirror_file
from embedding_store.contract import F32, I64, U32, U64, Bool, Changes, Cursor, EmbeddingStore, Rows
from embedding_store.decay import clocks_of, decays, missed
from embedding_store.errors import MirrorFileRefused
from embedding_store.feature_mirror import FeatureMirror, News
from embedding_store.filter_masks import FilterMasks
from embedding_store.item_filter import ItemFilter
from embedding_store.mirror_delta import Delta
from embedding_store.mirror_file import LOT, Header, Lot, MirrorFile, Standing
from embedding_store.mirror_reads import MirrorReads
from embedding_store.model import ModelSettings
from embedding_store.towers import DenseParameters, item_outputs
from embedding_store.turn_lock import TurnLock
from native.coarse import encode, tiles
from native.decay import shrink
from native.key_index import KeyIndex
from native.ragged import Ragged

_LN2 = float(np.log(2.0))
_AT_ONCE = 8192
"""Rows that are taken in while readers wait: a few milliseconds."""
_OF_SLOTS = (
    "_scans", "_index", "_vectors", "_delivered", "_delivered_at", "_outputs", "_codes", "_scales",
    "_log_popularity", "_bias", "_offset", "_columns", "_ids", "_named", "_checks",
)  # fmt: skip
"""What `_clear` begins anew."""
U8 = npt.NDArray[np.uint8]
Number = TypeVar("Number", bound=np.generic)


@dataclass(frozen=True, slots=True)
class Held:
    """The arrays of a mirror as they are now, for whoever copies them. Slots from `index.high_water` on are unused."""

    index: KeyIndex
    vectors: F32
    outputs: F32
    bias: F32
    columns: dict[str, I64]
    ids: list[bytes]
    codes: U8
    scales: F32
    dense: F32
    offset: float
    clock: int
    event_time_ms: int
    produced_ms: int


class ItemMirror(MirrorReads):
    """A copy of the `item` table with tower outputs. One thread refreshes; any number read.

    Rows of a regularized table change by the clock alone. They are kept as they were delivered, with the clock they
    were delivered at, and decayed anew from there when a shard's step has moved, whether or not the feed named any row:
    the closed forms compose (`embedding_store.decay`), while decaying step by step would lose in float32 whatever a
    step takes off below its last digit. That is made beside the arrays that are being read, and then takes their place.

    An item's vector is its row and those of its features. A feature's row changes with nearly every micro-batch, and
    with it every item that has the feature: all are made anew in the same pass, in the same share of time.
    """

    clock: int = 0
    event_time_ms: int = 0
    produced_ms: int = 0
    _index: KeyIndex
    _ids: list[bytes]

    def __init__(self, store: EmbeddingStore, model: ModelSettings, decay_share: float = 1.0) -> None:
        """decay_share: of its thread's time that may go into decaying all rows anew, in (0, 1]. Below 1, after one such
        pass of s seconds none begins for s · (1 / share − 1), and rows that the feed does not name stand where the last
        one left them; 1: they are as of every refresh.
        """
        super().__init__(model)
        self.lock = TurnLock()
        self.loaded = False
        self._store = store
        self.features = FeatureMirror(store, model) if model.features else None
        self._featured = self.features is not None and self.features.of_items
        self._masks = FilterMasks(self.features) if self.features is not None else None
        self._tables = ("item", "dense") if model.has_dense else ("item",)
        self._parameters = DenseParameters(model)
        self._dense = self._parameters.initial()
        self._towers = self._parameters.to_towers(self._dense)
        self._cursors: dict[str, Cursor | None] = dict.fromkeys(self._tables)
        self._spec = model.tables()["item"]
        self._decays = decays(self._spec)
        self._clocks: tuple[int, ...] = ()  # of each shard, as of the last refresh
        self._steps: list[int] = []  # of each shard, that the vectors stand at
        self._scans = 0  # how often slots were given out anew
        self._decay_share = decay_share
        self._decay_again_s = 0.0  # time.monotonic() from when on the next pass may begin
        self._behind = False  # whether a step has passed, or a feature moved, that the vectors don't stand at
        self._stale = False  # whether a feature moved since all vectors were made
        self._dim, self._output_dim = model.dim, model.output_dim
        self._delta: Delta | None = None  # None: nobody asks
        self._clear()

    def _clear(self, capacity: int = 1024) -> None:
        self._scans += 1
        if self._masks is not None:
            self._masks.clear()
        self._index = KeyIndex(capacity)
        n = self._index.capacity
        self._vectors = np.zeros((n, self._dim), np.float32)
        self._own_delivered = bool(self._decays) or self._featured
        self._delivered = np.zeros((n, self._dim), np.float32) if self._own_delivered else self._vectors
        self._delivered_at = np.zeros(n, np.int64)  # shard clock that each delivered row stands at
        self._outputs = self._vectors if self._raw_are_outputs else np.zeros((n, self._output_dim), np.float32)
        self._codes, self._scales = _coarse(n, self._output_dim)  # of the outputs, always in step with them
        self._log_popularity = np.full(n, -np.inf)  # float64: A/half-life grows without bound
        self._bias = np.full(n, -np.inf, np.float32)  # the same, below the largest: float32 keeps its digits there
        self._offset = -float("inf")
        self._columns = {name: np.zeros(n, np.int64) for name in ("clock", "count", "updated_ms")}
        self._ids = [b""] * n
        self._named = np.zeros(n, bool)
        self._checks = np.zeros(n, np.uint32)
        self._note(Delta(everything=True))

    def passing(self, wanted: ItemFilter) -> Bool:
        """As `MirrorReads` says."""
        return super().passing(wanted) if self._masks is None else self._masks.of(wanted, self._index)

    def _note(self, delta: Delta) -> None:
        if self._delta is not None:
            self._delta.add(delta)

    def take_delta(self) -> Delta:
        """What changed since the last call; at the first: everything. Of the refreshing thread."""
        delta, self._delta = self._delta, Delta()
        return Delta(everything=True) if delta is None else delta

    def held(self) -> Held:
        """What a copy of it is made of: not copied. Of the refreshing thread, or under `lock`."""
        return Held(
            self._index, self._vectors, self._outputs, self._bias, self._columns, self._ids, self._codes, self._scales,
            self._dense, self._offset, self.clock, self.event_time_ms, self.produced_ms,
        )  # fmt: skip

    @property
    def model(self) -> ModelSettings:
        """What it is a mirror of."""
        return self._model

    def frozen(self) -> ItemMirror:
        """A copy of what it holds now, not to be refreshed."""
        other = ItemMirror(self._store, self._model)
        with self.lock:
            keys = self._index.slot_keys
            here = np.flatnonzero(self._index.find(keys) == np.arange(len(keys)))  # without freed slots
            there = other._index.add(keys[here])
            other._grow()
            other._vectors[there], other._bias[there] = self._vectors[here], self._bias[here]
            other._log_popularity[there] = self._log_popularity[here]
            other._offset, other.clock, other._towers = self._offset, self.clock, self._towers
            if not self._raw_are_outputs:
                other._outputs[there] = self._outputs[here]
            encode(other._outputs, there, other._codes, other._scales)
            if self.features is not None:
                other.features = self.features.frozen()
        return other

    @property
    def nbytes(self) -> int:
        """Memory of its arrays, without the ids' Python objects."""
        with self.lock:
            arrays = [self._vectors, self._log_popularity, self._bias, self._delivered_at, self._named, self._checks]
            arrays += [*self._columns.values(), self._index.slot_keys, self._codes, self._scales]
            arrays += [] if self._delivered is self._vectors else [self._delivered]
            arrays += [] if self._outputs is self._vectors else [self._outputs]
            features = self.features.nbytes if self.features is not None else 0
            features += self._masks.nbytes if self._masks is not None else 0
            return features + sum(array.nbytes for array in arrays)

    def save(self, path: Path, document: bytes, generation: int, as_of_ms: int) -> int:
        """Write what it holds to a file, see `mirror_file`, from any thread, while it goes on: bytes written.

        document and generation: of the model and store that it is a mirror of; as_of_ms: wall clock, of which all that
        was in the feed is in the mirror. Raises MirrorFileRefused where it was filled anew meanwhile, and OSError.
        """
        with self.lock:
            cursors = {table: (c.run_id, c.positions) for table, c in self._cursors.items() if c is not None}
            standing = Standing(self._dim, cursors, self._clocks, self.event_time_ms, self.produced_ms)
            slots, dense, scans = self._index.high_water, self._dense, self._scans
        header = Header(document, generation, as_of_ms, slots, standing)
        return mirror_file.write(path, header, dense, self._lots(slots, scans))

    def _lots(self, slots: int, scans: int) -> Iterator[Lot]:
        for start in range(0, slots, LOT):
            with self.lock:
                if scans != self._scans:
                    raise MirrorFileRefused("the mirror is filled anew, its file is left as it was")
                keys = self._index.slot_keys[start : min(start + LOT, slots)]
                at = start + np.flatnonzero(self._index.find(keys) == np.arange(start, start + len(keys)))
                lot = Lot(
                    keys=self._index.slot_keys[at],
                    vectors=self._delivered[at],
                    delivered_at=self._delivered_at[at],
                    log_popularity=self._log_popularity[at],
                    checks=self._checks[at],
                    named=self._named[at],
                    ids=Ragged.of(self._ids[slot] for slot in at.tolist()),
                    **{name: column[at] for name, column in self._columns.items()},
                )
            yield lot

    def restore(self, file: MirrorFile) -> None:
        """Hold what a file holds; the next refresh goes on from there. Raises MirrorFileRefused: then it holds nothing.

        That the file is of this model, store and generation is for the caller to see to.
        """
        standing = file.header.standing
        shards = {len(standing.clocks), len(standing.cursor("item").positions)}
        if standing.dim != self._dim or shards != {self._spec.shards} or len(file.dense) != len(self._dense):
            raise MirrorFileRefused(f"{file.path} holds rows of {standing.dim} dimensions in {shards} shards")
        with self.lock:
            try:
                self._clear(file.header.slots)
                for lot in file.lots():
                    self._restore_lot(lot)
            except MirrorFileRefused:
                self._clear()
                raise
            self._cursors = {table: standing.cursor(table) for table in self._tables}
            self._dense, self._towers = file.dense, self._parameters.to_towers(file.dense)
            self._clocks, self.clock = standing.clocks, min(standing.clocks)
            self.event_time_ms, self.produced_ms = standing.event_time_ms, standing.produced_ms
            self._offset = float(self._log_popularity.max(initial=-np.inf))
            if self._offset > -np.inf:
                self._bias[:] = self._log_popularity - self._offset
            if self._decays:
                self._vectors, self._outputs, self._codes, self._scales = self._decayed(standing.clocks)
            else:
                if not self._raw_are_outputs:
                    self._outputs = item_outputs(self._model, self._towers.item, self._vectors)
                encode(self._outputs, np.arange(self._index.high_water), self._codes, self._scales)
            self._steps = [clock // self._spec.step_events for clock in standing.clocks]
            self.loaded = True

    def _restore_lot(self, lot: Lot) -> None:
        first = self._index.high_water
        slots = self._placed(lot.keys)
        fresh = first + len(slots) == self._index.high_water  # then in a row, and ten times as fast
        at = slice(first, first + len(slots)) if fresh else slots
        self._delivered[at], self._delivered_at[at] = lot.vectors, lot.delivered_at
        self._log_popularity[at], self._checks[at], self._named[at] = lot.log_popularity, lot.checks, lot.named
        for name, column in self._columns.items():
            column[at] = getattr(lot, name)
        data, ends = lot.ids.data.tobytes(), lot.ids.offsets.tolist()
        ids = [data[start:stop] for start, stop in itertools.pairwise(ends)]
        if isinstance(at, slice):
            self._ids[at] = ids
        else:
            for slot, identity in zip(slots.tolist(), ids, strict=True):
                self._ids[slot] = identity

    def wait(self, timeout_s: float) -> bool:
        """Block until there is something to refresh (True), or the time is over (False)."""
        watched = self._cursors if self.features is None else self._cursors | self.features.cursors
        cursors = [c for c in watched.values() if c is not None]
        if len(cursors) < len(watched):
            return True
        tables = tuple(watched)
        if not self._behind:
            return self._store.wait_for_changes(tables, cursors, timeout_s)
        left_s = max(0.0, self._decay_again_s - time.monotonic())
        moved = self._store.wait_for_changes(tables, cursors, min(timeout_s, left_s))
        return moved or time.monotonic() >= self._decay_again_s

    def refresh(self) -> int:
        """Take in what changed since the last call; returns item rows changed. On StoreError nothing changed."""
        if "dense" in self._tables:
            self._refresh_towers()
        news = None if self.features is None else self.features.fetch()
        changes = self._store.changes("item", self._cursors["item"])
        steps = [clock // self._spec.step_events for clock in changes.clock]
        moved = bool(self._decays) and steps != self._steps and not changes.rescan
        if self.features is not None and news is not None:
            with self.lock:
                self._stale |= self.features.take(news)
                self._touch_values(news)
            moved |= self._stale and self._featured and not changes.rescan
        decayed = self._decayed(changes.clock) if moved and time.monotonic() >= self._decay_again_s else None
        scanned = self._scanned(changes) if changes.rescan else None
        slices = self._slices(changes)
        with self.lock:
            if decayed is not None:
                self._vectors, self._outputs, self._codes, self._scales = decayed
                self._note(Delta(vectors=True))
            if scanned is not None:
                self._adopt(scanned)
            self._discard(changes.deleted)
        self._take_in_slices(changes, slices[:-1])
        with self.lock:
            for part in slices[-1:]:
                self._take(changes, part)
            self._behind = moved and decayed is None
            if not self._behind:
                self._steps, self._stale = steps, False
            self._cursors["item"], self._clocks = changes.cursor, changes.clock
            self.clock = min(changes.clock)
            self.event_time_ms, self.produced_ms = changes.event_time_ms, changes.produced_ms
            self.loaded = True
        return len(changes.keys) + len(changes.deleted)

    def _touch_values(self, news: News) -> None:
        if self._masks is None or news.items is None:
            return
        if news.items.rescan:
            self._masks.clear()
        self._masks.touch(news.items.deleted)
        self._masks.touch(news.items.keys)

    def _refresh_towers(self) -> None:
        changes = self._store.changes("dense", self._cursors["dense"])
        if self._cursors["dense"] is not None and not changes.rescan and not len(changes.keys):
            return
        dense = self._parameters.read(self._store)
        towers = self._parameters.to_towers(dense)
        with self.lock:  # both towers switch together, and every item with them
            self._dense, self._towers = dense, towers
            self._cursors["dense"] = changes.cursor
            if not self._raw_are_outputs:
                n = self._index.high_water
                self._outputs[:n] = item_outputs(self._model, towers.item, self._vectors[:n])
                encode(self._outputs, np.arange(n), self._codes, self._scales)
            self._note(Delta(towers=True, vectors=not self._raw_are_outputs))

    def _decayed(self, shard_clocks: Sequence[int]) -> tuple[F32, F32, U8, F32]:
        """Vectors, outputs and their coarse copy of every slot at the clocks of the shards."""
        began_s = time.monotonic()
        n = self._index.high_water
        clocks = clocks_of(self._index.slot_keys[:n], shard_clocks)
        both = missed(self._spec, self._delivered_at[:n], clocks, np.ones(n, np.bool_)) if self._decays else None
        vectors = self._delivered.copy()
        if both is not None:
            shrink(self._delivered[:n], *both, vectors[:n])
        if self.features is not None:
            self.features.add_to_items(self._index.slot_keys[:n], vectors[:n])
        outputs = vectors
        if not self._raw_are_outputs:
            outputs = np.zeros_like(self._outputs)
            outputs[:n] = item_outputs(self._model, self._towers.item, vectors[:n])
        codes, scales = _coarse(len(outputs), self._output_dim)
        encode(outputs, np.arange(n), codes, scales)
        ended_s = time.monotonic()
        self._decay_again_s = ended_s + (ended_s - began_s) * (1.0 / self._decay_share - 1.0)
        return vectors, outputs, codes, scales

    def _scanned(self, changes: Changes) -> ItemMirror:
        """The whole table, made beside what is read."""
        other = copy.copy(self)
        other.lock, other._delta, other._masks = TurnLock(), None, None
        other._clear(len(changes.keys))
        other._take(changes, slice(0, len(changes.keys)))
        return other

    def _adopt(self, other: ItemMirror) -> None:
        """Its slots in place of one's own."""
        for name in _OF_SLOTS:
            setattr(self, name, getattr(other, name))
        if self._masks is not None:
            self._masks.clear()  # they are of the slots there were
        self._note(Delta(everything=True))

    @staticmethod
    def _slices(changes: Changes) -> list[slice]:
        """What is taken in under one hold of the lock, in order; nothing of a scan, which is there as a whole."""
        n = 0 if changes.rescan else len(changes.keys)
        return [slice(start, min(n, start + _AT_ONCE)) for start in range(0, n, _AT_ONCE)]

    def _take_in_slices(self, changes: Changes, slices: Sequence[slice]) -> None:
        """All but the last of many: who reads meanwhile waits for one of them, and finds each row as it was or is."""
        if not slices:
            return
        self._make_room(len(changes.keys))
        for part in slices:
            with self.lock:
                self._take(changes, part)

    def _make_room(self, more: int) -> None:
        """For so many new rows: arrays are copied while they are read, since nobody else writes to them."""
        n = self._index.room_for(more)
        if n == self._index.capacity:
            return
        grown = self._grown_to(n)
        with self.lock:
            self._index.reserve(n)
            self._replace(grown)

    def _discard(self, keys: U64) -> None:
        freed = self._index.discard(keys)
        self._log_popularity[freed] = -np.inf
        self._bias[freed] = -np.inf
        self._named[freed] = False
        for slot in freed.tolist():
            self._ids[slot] = b""
        if len(freed):
            self._note(Delta(moves=[(keys, None)], rows=[freed]))

    def _take(self, changes: Changes, part: slice) -> None:
        keys = changes.keys[part]
        if not len(keys):
            return
        rows = changes.rows if len(keys) == len(changes.keys) else changes.rows.part(part)
        slots = self._placed(keys)
        vectors = rows.vectors
        if self.features is not None and self._featured:
            vectors = vectors.copy()
            self.features.add_to_items(keys, vectors)
        self._vectors[slots] = vectors
        if self._own_delivered:
            self._delivered[slots] = rows.vectors
        if self._decays:
            self._delivered_at[slots] = np.maximum(rows.clock, clocks_of(keys, changes.clock))
        if not self._raw_are_outputs:
            self._outputs[slots] = item_outputs(self._model, self._towers.item, vectors)
        encode(self._outputs, slots, self._codes, self._scales)
        for name, column in self._columns.items():
            column[slots] = getattr(rows, name)
        self._take_popularity(slots, rows)
        self._take_ids(slots, rows)

    def _placed(self, keys: U64) -> I64:
        """Slots of `keys`, new ones given one."""
        before = len(self._index)
        if self._delta is None:
            slots = self._index.add(keys)
        else:
            new = self._index.find(keys) < 0
            slots = self._index.add(keys)
            self._delta.add(Delta(moves=[(keys[new], slots[new])], rows=[slots]))
        if self._masks is not None and len(self._index) > before:
            self._masks.touch(keys)
        self._grow()
        return slots

    def _take_popularity(self, slots: I64, rows: Rows) -> None:
        with np.errstate(divide="ignore"):
            log_p = np.log(rows.popularity.astype(np.float64)) + _LN2 * rows.last_seen / self._half_life
        self._log_popularity[slots] = log_p
        top = float(log_p.max())
        if top > self._offset:
            self._offset = top
            self._bias[:] = self._log_popularity - self._offset
            self._note(Delta(popularity=True))
        elif self._offset > -np.inf:
            self._bias[slots] = log_p - self._offset

    def _take_ids(self, slots: I64, rows: Rows) -> None:
        # An id never changes while its row lives: only a slot's first id costs a Python object. But a row may have been
        # forgotten and come back between two refreshes: without an id, or, its check bits tell, as another id's.
        named = rows.ids.lengths > 0
        changed = np.flatnonzero((named != self._named[slots]) | (rows.check != self._checks[slots]))
        for i in changed.tolist():
            self._ids[slots[i]] = rows.ids.at(i)
        self._note(Delta(named=[slots[changed]]))
        self._named[slots] = named
        self._checks[slots] = rows.check

    def _grow(self) -> None:
        n = self._index.capacity
        if n != len(self._vectors):
            self._replace(self._grown_to(n))

    def _grown_to(self, n: int) -> _Arrays:
        """Longer copies, which `_replace` puts in place. Pure."""
        return _Arrays(
            vectors=_grown(self._vectors, n, 0.0),
            delivered=_grown(self._delivered, n, 0.0) if self._own_delivered else None,
            delivered_at=_grown(self._delivered_at, n, 0),
            outputs=None if self._raw_are_outputs else _grown(self._outputs, n, 0.0),
            codes=_grown(self._codes, tiles(n, self._output_dim)[0], 0),
            scales=_grown(self._scales, n, 0.0),
            log_popularity=_grown(self._log_popularity, n, -np.inf),
            bias=_grown(self._bias, n, -np.inf),
            columns={name: _grown(column, n, 0) for name, column in self._columns.items()},
            named=_grown(self._named, n, False),
            checks=_grown(self._checks, n, 0),
        )

    def _replace(self, grown: _Arrays) -> None:
        self._vectors = grown.vectors
        self._delivered = grown.vectors if grown.delivered is None else grown.delivered
        self._delivered_at = grown.delivered_at
        self._outputs = grown.vectors if grown.outputs is None else grown.outputs
        self._codes, self._scales = grown.codes, grown.scales
        self._log_popularity, self._bias = grown.log_popularity, grown.bias
        self._columns, self._named, self._checks = grown.columns, grown.named, grown.checks
        self._ids += [b""] * (len(grown.vectors) - len(self._ids))


class _Arrays(NamedTuple):
    """One element for each slot."""

    vectors: F32
    delivered: F32 | None  # None: the vectors
    delivered_at: I64
    outputs: F32 | None  # None: the vectors
    codes: U8
    scales: F32
    log_popularity: npt.NDArray[np.float64]
    bias: F32
    columns: dict[str, I64]
    named: npt.NDArray[np.bool_]
    checks: U32


def _coarse(rows: int, dim: int) -> tuple[U8, F32]:
    """(codes, scales) of rows of zeros."""
    return np.zeros(tiles(rows, dim), np.uint8), np.zeros(rows, np.float32)


def _grown(column: npt.NDArray[Number], n: int, fill: float) -> npt.NDArray[Number]:
    out = np.full((n, *column.shape[1:]), fill, column.dtype)
    out[: len(column)] = column
    return out
