"""Every item row in memory, kept fresh by the change feed."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from embedding_store.contract import F32, I64, U64, Changes, Cursor, EmbeddingStore, Rows
from embedding_store.decay import clocks_of, decays, missed
from embedding_store.mirror_delta import Delta
from embedding_store.mirror_reads import MirrorReads
from embedding_store.model import ModelSettings
from embedding_store.towers import DenseParameters, item_outputs
from native.decay import shrink
from native.key_index import KeyIndex

_LN2 = float(np.log(2.0))
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
        self.lock = threading.RLock()
        self.loaded = False
        self._store = store
        self._tables = ("item", "dense") if model.has_dense else ("item",)
        self._parameters = DenseParameters(model)
        self._dense = self._parameters.initial()
        self._towers = self._parameters.to_towers(self._dense)
        self._cursors: dict[str, Cursor | None] = dict.fromkeys(self._tables)
        self._spec = model.tables()["item"]
        self._decays = decays(self._spec)
        self._steps: list[int] = []  # of each shard, that the vectors stand at
        self._decay_share = decay_share
        self._decay_again_s = 0.0  # time.monotonic() from when on the next pass may begin
        self._behind = False  # whether a step has passed that the vectors don't stand at
        self._dim, self._output_dim = model.dim, model.output_dim
        self._delta: Delta | None = None  # None: nobody asks
        self._clear()

    def _clear(self) -> None:
        self._index = KeyIndex()
        n = self._index.capacity
        self._vectors = np.zeros((n, self._dim), np.float32)
        self._delivered = np.zeros((n, self._dim), np.float32) if self._decays else self._vectors
        self._delivered_at = np.zeros(n, np.int64)  # shard clock that each delivered row stands at
        self._outputs = self._vectors if self._raw_are_outputs else np.zeros((n, self._output_dim), np.float32)
        self._log_popularity = np.full(n, -np.inf)  # float64: A/half-life grows without bound
        self._bias = np.full(n, -np.inf, np.float32)  # the same, below the largest: float32 keeps its digits there
        self._offset = -float("inf")
        self._columns = {name: np.zeros(n, np.int64) for name in ("clock", "count", "updated_ms")}
        self._ids = [b""] * n
        self._named = np.zeros(n, bool)
        self._checks = np.zeros(n, np.uint32)
        self._note(Delta(everything=True))

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
            self._index, self._vectors, self._outputs, self._bias, self._columns, self._ids, self._dense, self._offset,
            self.clock, self.event_time_ms, self.produced_ms,
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
        return other

    @property
    def nbytes(self) -> int:
        """Memory of its arrays, without the ids' Python objects."""
        with self.lock:
            arrays = [self._vectors, self._log_popularity, self._bias, self._delivered_at, self._named, self._checks]
            arrays += [*self._columns.values(), self._index.slot_keys]
            arrays += [] if self._delivered is self._vectors else [self._delivered]
            arrays += [] if self._outputs is self._vectors else [self._outputs]
            return sum(array.nbytes for array in arrays)

    def wait(self, timeout_s: float) -> bool:
        """Block until there is something to refresh (True), or the time is over (False)."""
        cursors = [c for c in self._cursors.values() if c is not None]
        if len(cursors) < len(self._tables):
            return True
        if not self._behind:
            return self._store.wait_for_changes(self._tables, cursors, timeout_s)
        left_s = max(0.0, self._decay_again_s - time.monotonic())
        moved = self._store.wait_for_changes(self._tables, cursors, min(timeout_s, left_s))
        return moved or time.monotonic() >= self._decay_again_s

    def refresh(self) -> int:
        """Take in what changed since the last call; returns item rows changed. On StoreError nothing changed."""
        if "dense" in self._tables:
            self._refresh_towers()
        changes = self._store.changes("item", self._cursors["item"])
        steps = [clock // self._spec.step_events for clock in changes.clock]
        moved = bool(self._decays) and steps != self._steps and not changes.rescan
        decayed = self._decayed(changes) if moved and time.monotonic() >= self._decay_again_s else None
        with self.lock:
            if decayed is not None:
                self._vectors, self._outputs = decayed
                self._note(Delta(vectors=True))
            self._take(changes)
            self._behind = moved and decayed is None
            if not self._behind:
                self._steps = steps
            self._cursors["item"] = changes.cursor
            self.clock = min(changes.clock)
            self.event_time_ms, self.produced_ms = changes.event_time_ms, changes.produced_ms
            self.loaded = True
        return len(changes.keys) + len(changes.deleted)

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
            self._note(Delta(towers=True, vectors=not self._raw_are_outputs))

    def _decayed(self, changes: Changes) -> tuple[F32, F32]:
        """Vectors and outputs of every slot at the clocks of `changes`, whose own rows are still to come."""
        began_s = time.monotonic()
        n = self._index.high_water
        clocks = clocks_of(self._index.slot_keys[:n], changes.clock)
        both = missed(self._spec, self._delivered_at[:n], clocks, np.ones(n, np.bool_))
        vectors = self._delivered.copy()
        if both is not None:
            shrink(self._delivered[:n], *both, vectors[:n])
        outputs = vectors
        if not self._raw_are_outputs:
            outputs = np.zeros_like(self._outputs)
            outputs[:n] = item_outputs(self._model, self._towers.item, vectors[:n])
        ended_s = time.monotonic()
        self._decay_again_s = ended_s + (ended_s - began_s) * (1.0 / self._decay_share - 1.0)
        return vectors, outputs

    def _take(self, changes: Changes) -> None:
        if changes.rescan:
            self._clear()
        freed = self._index.discard(changes.deleted)
        self._log_popularity[freed] = -np.inf
        self._bias[freed] = -np.inf
        self._named[freed] = False
        for slot in freed.tolist():
            self._ids[slot] = b""
        if len(freed):
            self._note(Delta(moves=[(changes.deleted, None)], rows=[freed]))
        if not len(changes.keys):
            return
        slots = self._placed(changes.keys)
        rows = changes.rows
        self._vectors[slots] = rows.vectors
        if self._decays:
            self._delivered[slots] = rows.vectors
            self._delivered_at[slots] = np.maximum(rows.clock, clocks_of(changes.keys, changes.clock))
        if not self._raw_are_outputs:
            self._outputs[slots] = item_outputs(self._model, self._towers.item, rows.vectors)
        for name, column in self._columns.items():
            column[slots] = getattr(rows, name)
        self._take_popularity(slots, rows)
        self._take_ids(slots, rows)

    def _placed(self, keys: U64) -> I64:
        """Slots of `keys`, new ones given one."""
        if self._delta is None:
            slots = self._index.add(keys)
        else:
            new = self._index.find(keys) < 0
            slots = self._index.add(keys)
            self._delta.add(Delta(moves=[(keys[new], slots[new])], rows=[slots]))
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
        if n == len(self._vectors):
            return
        self._vectors = _grown(self._vectors, n, 0.0)
        self._delivered = _grown(self._delivered, n, 0.0) if self._decays else self._vectors
        self._delivered_at = _grown(self._delivered_at, n, 0)
        self._outputs = self._vectors if self._raw_are_outputs else _grown(self._outputs, n, 0.0)
        self._log_popularity = _grown(self._log_popularity, n, -np.inf)
        self._bias = _grown(self._bias, n, -np.inf)
        self._columns = {name: _grown(column, n, 0) for name, column in self._columns.items()}
        self._named = _grown(self._named, n, False)
        self._checks = _grown(self._checks, n, 0)
        self._ids += [b""] * (n - len(self._ids))


def _grown(column: npt.NDArray[Number], n: int, fill: float) -> npt.NDArray[Number]:
    out = np.full((n, *column.shape[1:]), fill, column.dtype)
    out[: len(column)] = column
    return out
