"""Rows of declared features in memory, and which of them each item has, kept fresh by the change feeds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from embedding_store.contract import F32, I64, U64, Bool, Changes, Cursor, EmbeddingStore, Values
from embedding_store.decay import clocks_of, decays, missed
from embedding_store.errors import StoreMisconfigured
from embedding_store.item_filter import ItemFilter
from embedding_store.model import ModelSettings
from native.decay import shrink
from native.features import ITEM, USER, FeatureSchema, FeatureValues, add_bags, concatenate
from native.key_index import KeyIndex
from native.passing import passing


def read_values(store: EmbeddingStore, schema: FeatureSchema, table: str, keys: U64) -> FeatureValues:
    """(n,) what a table of records holds of ids' features. Raises StoreUnavailable, StoreMisconfigured."""
    return of_records(schema, table, store.values(table, keys))


def of_records(schema: FeatureSchema, table: str, stored: Values) -> FeatureValues:
    """Values of the rows of a table of features. Raises StoreMisconfigured."""
    try:
        return FeatureValues.from_stored(schema, stored.values)
    except ValueError as error:
        raise StoreMisconfigured(f"table '{table}': {error}; something else writes to it") from error


@dataclass(frozen=True, slots=True)
class News:
    """What the feeds had."""

    rows: Changes  # of table `feature`
    items: Changes | None  # of table `item_features`
    values: FeatureValues  # of the items that changed


class FeatureMirror:
    """Copies of tables `feature` and `item_features`. For the thread that refreshes an `ItemMirror`, under its lock.

    A row that is not there adds nothing, as its initial vector is zero. Rows decay as items' do, all of them at once.
    """

    def __init__(self, store: EmbeddingStore, model: ModelSettings) -> None:
        self.schema = model.feature_schema
        self._store, self._model = store, model
        self._spec = model.tables()["feature"]
        self._decays = decays(self._spec)
        self.of_items = self.schema.has(ITEM)
        self.of_users = self.schema.has(USER)
        self.tables = ("feature", "item_features") if self.of_items else ("feature",)
        self.cursors: dict[str, Cursor | None] = dict.fromkeys(self.tables)
        self._steps: list[int] = []
        self._rows = KeyIndex()
        self._clear_rows()
        self._clear_items()

    def _clear_rows(self) -> None:
        """Slots stay: items refer to them."""
        n = self._rows.capacity
        self._vectors = np.zeros((n, self._model.dim), np.float32)
        self._delivered = np.zeros((n, self._model.dim), np.float32) if self._decays else self._vectors
        self._delivered_at = np.zeros(n, np.int64)
        self._there = np.zeros(n, np.bool_)

    def _clear_items(self) -> None:
        """Values of items lie one after the other in `_values`; an item's slot says where its newest are."""
        self._items = KeyIndex()
        self._first, self._count = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self._values = FeatureValues.empty(0)
        self._value_rows, self._weights = np.zeros(0, np.int64), np.zeros(0, np.float32)

    @property
    def nbytes(self) -> int:
        """Memory of its arrays."""
        own = 0 if self._delivered is self._vectors else self._delivered.nbytes
        values = self._values.key.nbytes + self._value_rows.nbytes + self._weights.nbytes
        return own + values + self._vectors.nbytes + self._first.nbytes + self._count.nbytes

    def fetch(self) -> News:
        """What changed since the last `take`. Changes nothing here. Raises StoreError."""
        rows = self._store.changes("feature", self.cursors["feature"])
        if not self.of_items:
            return News(rows, None, FeatureValues.empty())
        items = self._store.changes("item_features", self.cursors["item_features"])
        return News(rows, items, read_values(self._store, self.schema, "item_features", items.keys))

    def take(self, news: News) -> bool:
        """Take it in; whether what items' features add up to may be another."""
        moved = self._take_rows(news.rows)
        if news.items is None:
            return False
        return self._take_items(news.items, news.values) or moved

    def _take_rows(self, changes: Changes) -> bool:
        self.cursors["feature"] = changes.cursor
        steps = [clock // self._spec.step_events for clock in changes.clock]
        moved = bool(self._decays) and steps != self._steps
        self._steps = steps
        if changes.rescan:
            self._clear_rows()
        gone = self._rows.find(changes.deleted)
        gone = gone[gone >= 0]
        self._vectors[gone], self._delivered[gone], self._there[gone] = 0.0, 0.0, False
        slots = self._rows.add(changes.keys)
        self._grow()
        if moved:
            n = self._rows.high_water
            self._vectors[:n] = self._delivered[:n]
            clocks = clocks_of(self._rows.slot_keys, changes.clock)
            both = missed(self._spec, self._delivered_at[:n], clocks, np.ones(n, np.bool_))
            if both is not None:
                shrink(self._delivered[:n], *both, self._vectors[:n])
        self._vectors[slots], self._there[slots] = changes.rows.vectors, True
        if self._decays:
            self._delivered[slots] = changes.rows.vectors
            self._delivered_at[slots] = np.maximum(changes.rows.clock, clocks_of(changes.keys, changes.clock))
        return moved or changes.rescan or bool(len(changes.keys) + len(changes.deleted))

    def _take_items(self, changes: Changes, values: FeatureValues) -> bool:
        self.cursors["item_features"] = changes.cursor
        if changes.rescan:
            self._clear_items()
        gone = self._items.discard(changes.deleted)
        self._count[gone] = 0
        if len(changes.keys):
            slots = self._items.add(changes.keys)
            if (more := self._items.capacity - len(self._first)) > 0:
                self._first = np.append(self._first, np.zeros(more, np.int64))
                self._count = np.append(self._count, np.zeros(more, np.int64))
            first = len(self._values.key)
            self._first[slots], self._count[slots] = first + values.offsets[:-1], values.counts
            self._append(values)
            if 2 * int(self._count.sum()) + 1024 < len(self._values.key):
                self._compact()
        return changes.rescan or bool(len(changes.keys) + len(gone))

    def _append(self, values: FeatureValues) -> None:
        distinct = np.unique(values.key)
        self._rows.add(distinct)
        self._grow()
        joined = concatenate([self._values, values])
        self._values = joined
        self._value_rows = np.append(self._value_rows, self._rows.find(values.key))
        self._weights = np.append(self._weights, values.weights())

    def _compact(self) -> None:
        count = self._count[: self._items.high_water]
        offsets = np.zeros(len(count) + 1, np.int64)
        np.cumsum(count, out=offsets[1:])
        at = np.arange(offsets[-1]) + np.repeat(self._first[: len(count)] - offsets[:-1], count)
        self._values = FeatureValues(offsets, self._values.number[at], self._values.key[at])
        self._value_rows, self._weights = self._value_rows[at], self._weights[at]
        self._first[: len(count)] = offsets[:-1]

    def _grow(self) -> None:
        more = self._rows.capacity - len(self._vectors)
        if more <= 0:
            return
        self._vectors = np.pad(self._vectors, ((0, more), (0, 0)))
        self._delivered = np.pad(self._delivered, ((0, more), (0, 0))) if self._decays else self._vectors
        self._delivered_at, self._there = np.pad(self._delivered_at, (0, more)), np.pad(self._there, (0, more))

    def add_to_items(self, keys: U64, vectors: F32) -> None:
        """vectors[i] (n, dim) += what the features of item keys[i] add up to."""
        if not self.of_items:
            return
        offsets, at = self._places(keys)
        chosen = np.arange(len(keys))
        add_bags(self._vectors, chosen, offsets, self._value_rows[at], self._weights[at], vectors)

    def values_of_item(self, key: int) -> FeatureValues:
        """(1,) values of an item."""
        offsets, at = self._places(np.array([key], np.uint64))
        return FeatureValues(offsets, self._values.number[at], self._values.key[at])

    def passing(self, wanted: ItemFilter, keys: U64) -> Bool:
        """(n,) whether items pass a filter, by what is known of them; False for an item nothing is known of."""
        meets = np.zeros(self._rows.high_water, np.uint64)
        for bit, any_of in enumerate(wanted.any_of):
            rows = self._rows.find(np.array(any_of, np.uint64))
            meets[rows[rows >= 0]] |= np.uint64(1 << bit)
        slots = self._items.find(keys)
        count = np.where(slots >= 0, self._count[slots], 0) if len(self._count) else np.zeros(len(keys), np.int64)
        first = self._first[slots] if len(self._first) else count
        out = np.empty(len(keys), np.bool_)
        passing(first, count, self._value_rows, meets, np.uint64((1 << len(wanted.any_of)) - 1), out)
        return out

    def _places(self, keys: U64) -> tuple[I64, I64]:
        slots = self._items.find(keys)
        some = slots >= 0
        first, count = np.zeros(len(keys), np.int64), np.zeros(len(keys), np.int64)
        first[some], count[some] = self._first[slots[some]], self._count[slots[some]]
        offsets = np.zeros(len(keys) + 1, np.int64)
        np.cumsum(count, out=offsets[1:])
        return offsets, np.arange(offsets[-1]) + np.repeat(first - offsets[:-1], count)

    def sums(self, values: FeatureValues) -> tuple[F32, Bool]:
        """((n, dim) what values of n rows add up to, (n,) whether any of them is known)."""
        out = np.zeros((len(values), self._model.dim), np.float32)
        slots = self._rows.find(values.key)
        slots[slots >= 0] = np.where(self._there[slots[slots >= 0]], slots[slots >= 0], -1)
        add_bags(self._vectors, np.arange(len(values)), values.offsets, slots, values.weights(), out)
        known = np.zeros(len(values), np.bool_)
        known[np.repeat(np.arange(len(values)), values.counts)[slots >= 0]] = True
        return out, known

    def parts(self, values: FeatureValues) -> dict[int, F32]:
        """(dim,) what each feature of one row (1,) adds, by its number."""
        found = {}
        for number in np.unique(values.number).tolist():
            found[number] = self.sums(values.where(values.number == number))[0][0]
        return found

    def frozen(self) -> FeatureMirror:
        """A copy of its rows as they are now, not to be refreshed."""
        other = FeatureMirror(self._store, self._model)
        n = self._rows.high_water
        other._rows.add(self._rows.slot_keys.copy())
        other._clear_rows()
        other._vectors[:n], other._there[:n] = self._vectors[:n], self._there[:n]
        return other
