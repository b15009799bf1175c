"""Every item row in memory, kept fresh by the change feed."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from embedding_store.contract import F32, I64, U64, Bool, Changes, Cursor, EmbeddingStore, Rows
from embedding_store.decay import clocks_of, decays, missed
from embedding_store.feature_mirror import FeatureMirror
from embedding_store.model import ModelSettings
from embedding_store.towers import DenseParameters, Gates, Layers, item_outputs
from native.decay import shrink
from native.key_index import KeyIndex
from native.scan import score_items

_LN2 = float(np.log(2.0))
Number = TypeVar("Number", bound=np.generic)


@dataclass(frozen=True, slots=True)
class MirrorRows:
    """Items as the mirror holds them; row i answers key i, zeros and found False where it has none."""

    vectors: F32  # (n, output_dim) outputs of the item tower
    found: Bool  # (n,)
    clock: I64  # (n,)
    count: I64  # (n,)
    updated_ms: I64  # (n,)


class ItemMirror:
    """A copy of the `item` table with tower outputs. One thread refreshes; any number read.

    Popularity decays on the event clock: ln(popularity at t) = ln p + ln 2·(A − t)/half-life, where p was stored at
    clock A. The part with t is common to all items, so what is kept per item is the constant `ln p + ln 2·A/half-life`.

    Rows of a regularized table change by the clock alone. They are kept as they were delivered, with the clock they
    were delivered at, and decayed anew from there when a shard's step has moved, whether or not the feed named any row:
    the closed forms compose (`embedding_store.decay`), while decaying step by step would lose in float32 whatever a
    step takes off below its last digit. That is made beside the arrays that are being read, and then takes their place.

    An item's vector is its row and those of its features. A feature's row changes with nearly every micro-batch, and
    with it every item that has the feature: all are made anew in the same pass, in the same share of time.
    """

    def __init__(self, store: EmbeddingStore, model: ModelSettings, decay_share: float = 1.0) -> None:
        """decay_share: of its thread's time that may go into decaying all rows anew, in (0, 1]. Below 1, after one such
        pass of s seconds none begins for s · (1 / share − 1), and rows that the feed does not name stand where the last
        one left them; 1: they are as of every refresh.
        """
        self.lock = threading.RLock()
        self.loaded = False
        self.event_time_ms = 0
        self.produced_ms = 0
        self.clock = 0
        self._store, self._model = store, model
        self._half_life = float(model.popularity_half_life)
        self._log_floor = float(np.log(model.popularity_floor))
        self.features = FeatureMirror(store, model) if model.features else None
        self._featured = self.features is not None and self.features.of_items
        self._tables = ("item", "dense") if model.has_dense else ("item",)
        self._parameters = DenseParameters(model)
        self._towers = self._parameters.to_towers(self._parameters.initial())
        self._cursors: dict[str, Cursor | None] = dict.fromkeys(self._tables)
        self._spec = model.tables()["item"]
        self._decays = decays(self._spec)
        self._steps: list[int] = []  # of each shard, that the vectors stand at
        self._decay_share = decay_share
        self._decay_again_s = 0.0  # time.monotonic() from when on the next pass may begin
        self._behind = False  # whether a step has passed, or a feature moved, that the vectors don't stand at
        self._stale = False  # whether a feature moved since all vectors were made
        self._dim, self._output_dim = model.dim, model.output_dim
        self._raw_are_outputs = not model.dense_layers and model.similarity == "dot"
        self._clear()

    def _clear(self) -> None:
        self._index = KeyIndex()
        n = self._index.capacity
        self._vectors = np.zeros((n, self._dim), np.float32)
        self._own_delivered = bool(self._decays) or self._featured
        self._delivered = np.zeros((n, self._dim), np.float32) if self._own_delivered else self._vectors
        self._delivered_at = np.zeros(n, np.int64)  # shard clock that each delivered row stands at
        self._outputs = self._vectors if self._raw_are_outputs else np.zeros((n, self._output_dim), np.float32)
        self._log_popularity = np.full(n, -np.inf)  # float64: A/half-life grows without bound
        self._bias = np.full(n, -np.inf, np.float32)  # the same, below the largest: float32 keeps its digits there
        self._offset = -np.inf
        self._columns = {name: np.zeros(n, np.int64) for name in ("clock", "count", "updated_ms")}
        self._ids: list[bytes] = [b""] * n
        self._named = np.zeros(n, bool)
        self._checks = np.zeros(n, np.uint32)

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
            if self.features is not None:
                other.features = self.features.frozen()
        return other

    @property
    def size(self) -> int:
        """Items held."""
        return len(self._index)

    @property
    def nbytes(self) -> int:
        """Memory of its arrays, without the ids' Python objects."""
        with self.lock:
            arrays = [self._vectors, self._log_popularity, self._bias, self._delivered_at, self._named, self._checks]
            arrays += [*self._columns.values(), self._index.slot_keys]
            arrays += [] if self._delivered is self._vectors else [self._delivered]
            arrays += [] if self._outputs is self._vectors else [self._outputs]
            features = self.features.nbytes if self.features is not None else 0
            return features + sum(array.nbytes for array in arrays)

    def spread(self, limit: int) -> U64:
        """Keys of at most `limit` items, spread evenly over the order in which they came."""
        with self.lock:
            high = self._index.high_water
            places = np.arange(0, high, max(1, -(-high // limit)))
            keys = self._index.slot_keys[places]
            held: U64 = keys[self._index.find(keys) == places]  # without freed slots
        return held

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
            moved |= self._stale and self._featured and not changes.rescan
        decayed = self._decayed(changes) if moved and time.monotonic() >= self._decay_again_s else None
        with self.lock:
            if decayed is not None:
                self._vectors, self._outputs = decayed
            self._take(changes)
            self._behind = moved and decayed is None
            if not self._behind:
                self._steps, self._stale = steps, False
            self._cursors["item"] = changes.cursor
            self.clock = min(changes.clock)
            self.event_time_ms, self.produced_ms = changes.event_time_ms, changes.produced_ms
            self.loaded = True
        return len(changes.keys) + len(changes.deleted)

    def _refresh_towers(self) -> None:
        changes = self._store.changes("dense", self._cursors["dense"])
        if self._cursors["dense"] is not None and not changes.rescan and not len(changes.keys):
            return
        towers = self._parameters.to_towers(self._parameters.read(self._store))
        with self.lock:  # both towers switch together, and every item with them
            self._towers = towers
            self._cursors["dense"] = changes.cursor
            if not self._raw_are_outputs:
                n = self._index.high_water
                self._outputs[:n] = item_outputs(self._model, towers.item, self._vectors[:n])

    def _decayed(self, changes: Changes) -> tuple[F32, F32]:
        """Vectors and outputs of every slot at the clocks of `changes`, whose own rows are still to come."""
        began_s = time.monotonic()
        n = self._index.high_water
        clocks = clocks_of(self._index.slot_keys[:n], changes.clock)
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
        if not len(changes.keys):
            return
        slots = self._index.add(changes.keys)
        self._grow()
        rows = changes.rows
        vectors = rows.vectors
        if self.features is not None and self._featured:
            vectors = vectors.copy()
            self.features.add_to_items(changes.keys, vectors)
        self._vectors[slots] = vectors
        if self._own_delivered:
            self._delivered[slots] = rows.vectors
        if self._decays:
            self._delivered_at[slots] = np.maximum(rows.clock, clocks_of(changes.keys, changes.clock))
        if not self._raw_are_outputs:
            self._outputs[slots] = item_outputs(self._model, self._towers.item, vectors)
        for name, column in self._columns.items():
            column[slots] = getattr(rows, name)
        self._take_popularity(slots, rows)
        self._take_ids(slots, rows)

    def _take_popularity(self, slots: I64, rows: Rows) -> None:
        with np.errstate(divide="ignore"):
            log_p = np.log(rows.popularity.astype(np.float64)) + _LN2 * rows.last_seen / self._half_life
        self._log_popularity[slots] = log_p
        top = log_p.max()
        if top > self._offset:
            self._offset = top
            self._bias[:] = self._log_popularity - self._offset
        elif self._offset > -np.inf:
            self._bias[slots] = log_p - self._offset

    def _take_ids(self, slots: I64, rows: Rows) -> None:
        # An id never changes while its row lives: only a slot's first id costs a Python object. But a row may have been
        # forgotten and come back between two refreshes: without an id, or, its check bits tell, as another id's.
        named = rows.ids.lengths > 0
        changed = (named != self._named[slots]) | (rows.check != self._checks[slots])
        for i in np.flatnonzero(changed).tolist():
            self._ids[slots[i]] = rows.ids.at(i)
        self._named[slots] = named
        self._checks[slots] = rows.check

    def _grow(self) -> None:
        n = self._index.capacity
        if n == len(self._vectors):
            return
        self._vectors = _grown(self._vectors, n, 0.0)
        self._delivered = _grown(self._delivered, n, 0.0) if self._own_delivered else self._vectors
        self._delivered_at = _grown(self._delivered_at, n, 0)
        self._outputs = self._vectors if self._raw_are_outputs else _grown(self._outputs, n, 0.0)
        self._log_popularity = _grown(self._log_popularity, n, -np.inf)
        self._bias = _grown(self._bias, n, -np.inf)
        self._columns = {name: _grown(column, n, 0) for name, column in self._columns.items()}
        self._named = _grown(self._named, n, False)
        self._checks = _grown(self._checks, n, 0)
        self._ids += [b""] * (n - len(self._ids))

    def items(self, keys: U64) -> MirrorRows:
        """Rows of `keys`, in their order."""
        with self.lock:
            slots = self._index.find(keys)
            found = slots >= 0
            if found.all():
                columns = {name: column[slots] for name, column in self._columns.items()}
                return MirrorRows(vectors=self._outputs[slots], found=found, **columns)
            safe = np.where(found, slots, 0)
            vectors = np.where(found[:, None], self._outputs[safe], np.float32(0.0))
            columns = {name: np.where(found, column[safe], 0) for name, column in self._columns.items()}
            return MirrorRows(vectors=vectors, found=found, **columns)

    def item(self, keys: U64) -> tuple[F32, int, int, int] | None:
        """(output (output_dim,), clock, count, updated_ms) of the only key of `keys` (1,); None where it is missing."""
        with self.lock:
            slot = int(self._index.find(keys)[0])
            if slot < 0:
                return None
            clock, count, updated_ms = (int(column[slot]) for column in self._columns.values())
            return self._outputs[slot].copy(), clock, count, updated_ms

    def raw_vectors(self, keys: U64) -> tuple[F32, Bool]:
        """((n, dim) rows before the item tower, (n,) found): what user histories are pooled from."""
        with self.lock:
            slots = self._index.find(keys)
            found = slots >= 0
            return self._vectors[np.where(found, slots, 0)], found

    @property
    def user_layers(self) -> Layers:
        """Dense layers of the user tower, of the same version as the items' outputs."""
        return self._towers.user

    @property
    def item_layers(self) -> Layers:
        """Those of the item tower, likewise."""
        return self._towers.item

    @property
    def gates(self) -> Gates:
        """Gates, likewise."""
        return self._towers.gates

    def slots(self, keys: U64) -> I64:
        """(n,) place of each key in the arrays that `scores` fills, -1 where absent. Valid under `lock`."""
        return self._index.find(keys)

    def scores(self, vector: F32 | None, popularity_weight: float, slots: I64 | None = None) -> F32:
        """(high water,) score of every slot: vector·item + weight·ln(popularity / the most popular's), see `columns`.

        slots: of these alone, in their order.

        Call under `lock`. -inf for items that no positive event has named yet. None scores by popularity alone.
        """
        outputs, popularity, floor = self.columns()
        if slots is not None:
            outputs, popularity = outputs[slots], popularity[slots]
        if vector is None:
            return popularity.copy()
        out = np.empty(len(popularity), np.float32)
        user = np.ascontiguousarray(vector, np.float32)
        score_items(outputs, popularity, floor, user, np.float32(popularity_weight), out)
        return out

    def columns(self) -> tuple[F32, F32, np.float32]:
        """What scores are made of, one place per slot: (item outputs, log popularity, what it counts as at least).

        Call under `lock`: views. Log popularity is below that of the most popular item, -inf where no positive event
        has named the item.
        """
        n = self._index.high_water
        floor = self._log_floor + _LN2 * self.clock / self._half_life - self._scale
        return self._outputs[:n], self._bias[:n], np.float32(floor)

    def gains(self, positives: F32) -> F32:
        """(n,) what events (n,) on top of the clock add to popularity, each in logs and on the scale of `columns`."""
        clocks = self.clock + 1.0 + np.arange(len(positives))
        with np.errstate(divide="ignore"):
            log_p = np.log(positives.astype(np.float64)) + _LN2 * clocks / self._half_life
        out: F32 = (log_p - self._scale).astype(np.float32)
        return out

    @property
    def _scale(self) -> float:
        """What log popularity is told below: the largest, or as good as any where no item is popular yet."""
        return self._offset if np.isfinite(self._offset) else _LN2 * self.clock / self._half_life

    def describe(self, slots: I64) -> tuple[U64, list[bytes], I64, I64]:
        """(keys, ids, clocks, updated_ms) of slots. Call under `lock`."""
        ids = [self._ids[s] for s in slots.tolist()]
        return self._index.slot_keys[slots], ids, self._columns["clock"][slots], self._columns["updated_ms"][slots]


def _grown(column: npt.NDArray[Number], n: int, fill: float) -> npt.NDArray[Number]:
    out = np.full((n, *column.shape[1:]), fill, column.dtype)
    out[: len(column)] = column
    return out
