"""Context features of a micro-batch: which values each item and each example has, and the rows that stand for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from embedding_store.contract import F32, I64, ORDER, U32, U64, EmbeddingStore, Orders, Rows
from embedding_store.feature_mirror import of_records
from ingest.columns import SIDES, Events, Profiles
from native.features import (
    ITEM,
    REQUEST,
    USER,
    FeatureSchema,
    FeatureValues,
    add_bag_gradients,
    add_bags,
    concatenate,
    csr_take,
)
from native.key_index import KeyIndex, unique_keys
from native.ragged import Ragged
from trainer.replay import Replayed
from trainer.row_reader import RowReader

_LAST = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Recorded:
    """What r events say the features of ids of one side are, from then on."""

    side: int  # ITEM or USER
    keys: U64  # (r,)
    checks: U32  # (r,)
    ids: Ragged
    orders: Orders  # (r,) of dtype ORDER
    values: FeatureValues  # r rows


def recorded_of(events: Events, profiles: Profiles | None, schema: FeatureSchema) -> list[Recorded]:
    """Of each side: events that bring features of it, and profiles, which may also take all of them away."""
    found: list[Recorded] = []
    for name, side in SIDES.items() if schema else ():
        if not schema.has(side):
            continue
        if events.features is not None:
            values = events.features.of_side(schema, side)
            rows = np.flatnonzero(values.counts)
            if len(rows):
                columns = (getattr(events, f"{name}_{part}") for part in ("key", "check", "id"))
                key, check, ids = columns
                orders = orders_of(events.time_ms[rows], events.partition[rows], events.place[rows])
                found.append(Recorded(side, key[rows], check[rows], ids.take(rows), orders, values.take(rows)))
        if profiles is not None:
            rows = np.flatnonzero(profiles.side == side)
            if len(rows):
                own = profiles.take(rows)
                orders = orders_of(own.time_ms, own.partition, own.place)
                found.append(Recorded(side, own.key, own.check, own.id, orders, own.features))
    return found


def orders_of(time_ms: I64, partition: U32, place: I64) -> Orders:
    """(n,) of dtype ORDER."""
    orders = np.empty(len(time_ms), ORDER)
    orders["time_ms"], orders["partition"], orders["place"] = time_ms, partition, place
    return orders


@dataclass(frozen=True, slots=True)
class Bags:
    """n sums of weighted rows: bag i has those at offsets[i]:offsets[i + 1]."""

    offsets: I64  # (n + 1,)
    rows: I64  # (m,)
    weights: F32  # (m,)

    @property
    def filled(self) -> np.ndarray:
        """(n,) whether there is anything in them."""
        return np.diff(self.offsets) > 0

    def add_to(self, out: F32, vectors: F32, chosen: I64 | None = None) -> None:
        """out[i] += bag chosen[i] (default i) of vectors (w, dim); out (n, dim), nothing where chosen is negative."""
        at = np.arange(len(out)) if chosen is None else chosen
        add_bags(vectors, at, self.offsets, self.rows, self.weights, out)

    def add_gradients(self, out: F32, gradients: F32) -> None:
        """Add to out (w, dim) what gradients (n, dim) of all bags ask of vectors."""
        add_bag_gradients(gradients, np.arange(len(gradients)), self.offsets, self.rows, self.weights, out)

    def add_mean_gradients(self, out: F32, gradients: F32, chosen: I64) -> None:
        """As `add_gradients` of gradients (n, dim) of bags chosen (n,), none where negative, each row's sum divided by
        the number of its bags among them.

        A row that half of all examples share gets a sum so large and steady that it outgrows every item's row, which
        then learn that direction and little else.
        """
        sums = np.zeros_like(out)
        add_bag_gradients(gradients, chosen, self.offsets, self.rows, self.weights, sums)
        _, at = csr_take(self.offsets, chosen[chosen >= 0])
        often = np.bincount(self.rows[at], minlength=len(out))
        out += sums / np.maximum(often, 1).astype(np.float32)[:, None]


@dataclass(frozen=True, slots=True)
class ExampleFeatures:
    """Features of the u items and n examples of `trainer.examples.Examples`."""

    keys: U64  # (w,)
    rows: Rows  # (w,) of table `feature`; zeros where it has none
    items: Bags  # u
    users: Bags  # n, of user and request together
    vectors: F32  # (u, dim) the items' rows with their features, as they were read

    def on_items(self, items: F32, rows: F32) -> F32:
        """(u, dim) items' rows with their features, as both stand now."""
        out = items.copy()
        self.items.add_to(out, rows)
        return out


class FeatureReader:
    """Reads what the store keeps of ids' features and lays what was not applied yet over it. Never writes."""

    def __init__(self, store: EmbeddingStore, schema: FeatureSchema, *, with_state: bool) -> None:
        self._store, self._schema, self._with_state = store, schema, with_state

    def read(
        self,
        reader: RowReader,
        events: Events,
        replayed: Replayed,
        items: tuple[U64, F32],
        users: tuple[U64, I64],
        recorded: Sequence[Recorded],
    ) -> ExampleFeatures:
        """items: keys (u,) and rows (u, dim). users: keys (v,) and the number of each example's, events first.

        recorded: what is not applied yet, the micro-batch's own included. An item has its newest features. An event's
        user has those as of the event, or, if all are newer, those that are stored: else a feature could tell an event
        what came after it. Raises StoreUnavailable.
        """
        keys, vectors = items
        n, total = len(events), len(users[1])
        given = FeatureValues.empty(n) if events.features is None else events.features.of_side(self._schema, REQUEST)
        bound = concatenate([given, FeatureValues.empty(total - n) if replayed.request is None else replayed.request])
        if self._schema.has(USER):
            orders = np.full(total, _LAST, np.int64)
            asked = orders_of(orders, np.zeros(total, np.uint32), orders)
            asked[:n] = orders_of(events.time_ms, events.partition, events.place)
            bound = self._kept("user_features", USER, users[0], users[1], asked, recorded).beside(bound)
        kept = FeatureValues.empty(len(keys))
        if self._schema.has(ITEM):
            last = np.full(len(keys), _LAST, np.int64)
            asked = orders_of(last, np.zeros(len(keys), np.uint32), last)
            kept = self._kept("item_features", ITEM, keys, np.arange(len(keys)), asked, recorded)
        distinct, numbers = unique_keys(np.concatenate([kept.key, bound.key]))
        rows = reader.lookup("feature", distinct, with_ids=False, with_state=self._with_state)
        of_items = Bags(kept.offsets, numbers[: len(kept.key)], kept.weights())
        of_users = Bags(bound.offsets, numbers[len(kept.key) :], bound.weights())
        whole = vectors.copy()
        of_items.add_to(whole, rows.vectors)
        return ExampleFeatures(distinct, rows, of_items, of_users, whole)

    def _kept(
        self, table: str, side: int, keys: U64, numbers: I64, asked: Orders, recorded: Sequence[Recorded]
    ) -> FeatureValues:
        """What id numbers[i] of `keys` has as of asked[i]; else what is stored of it."""
        stored = self._store.values(table, keys)
        values = [of_records(self._schema, table, stored)]
        there = np.flatnonzero(stored.found)
        sources, rows, orders = [there], [there], [stored.orders[there]]
        index = KeyIndex(max(16, len(keys)))
        index.add(keys)
        at = len(keys)
        for part in recorded:
            if part.side != side:
                continue
            number = index.find(part.keys)
            mine = np.flatnonzero(number >= 0)
            values.append(part.values)
            sources.append(at + mine)
            rows.append(number[mine])
            orders.append(part.orders[mine])
            at += len(part.keys)
        whole = concatenate([*values, FeatureValues.empty(1)])
        if at == len(keys):  # nothing but what is stored
            return whole.take(np.where(stored.found[numbers], numbers, at))
        found = newest(np.concatenate(rows), np.concatenate(orders), numbers, asked)
        source = np.concatenate(sources)
        instead = np.where(stored.found[numbers], numbers, at)
        return whole.take(np.where(found >= 0, source[found], instead) if len(source) else instead)


def newest(rows: I64, orders: Orders, ask_rows: I64, ask_orders: Orders) -> I64:
    """(m,) which of records (r,) is the newest of row ask_rows[i] that is not newer than ask_orders[i]; -1 for none."""
    n = len(rows)
    row, order = np.concatenate([rows, ask_rows]), np.concatenate([orders, ask_orders])
    asks = np.arange(len(row)) >= n  # behind a record of the same place
    ranked = np.lexsort((asks, order["place"], order["partition"], order["time_ms"], row))
    last = np.maximum.accumulate(np.where(ranked < n, np.arange(len(ranked)), -1))
    before = ranked[np.maximum(last, 0)]
    found = (last >= 0) & (row[before] == row[ranked])
    out = np.full(len(ask_rows), -1, np.int64)
    is_ask = ranked >= n
    out[ranked[is_ask] - n] = np.where(found, before, -1)[is_ask]
    return out
