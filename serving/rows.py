"""Rows of either tower, ready to be answered: where they come from, and which of them may leave."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from embedding_store.contract import F32, I64, U64, Bool
from embedding_store.mirror_reads import Gathered, MirrorRows
from embedding_store.ranking import Users
from embedding_store.towers import DenseParameters, Layers, item_outputs
from serving.metrics import Metrics
from serving.problems import Problem, unavailable
from serving.schemas import Tower
from serving.service import Live, Service

TOWERS: tuple[str, ...] = get_args(Tower)


@dataclass(frozen=True, slots=True)
class TowerRows:
    """Outputs of a tower; row i answers key i. Only finite vectors are `found`."""

    vectors: F32  # (n, output_dim)
    found: Bool  # (n,)
    clock: I64  # (n,)
    count: I64  # (n,)
    updated_ms: I64  # (n,)
    source: Literal["mirror", "store"]


@dataclass(frozen=True, slots=True)
class TowerRow:
    """One of them; numbers are 0 where it is not known."""

    vector: F32  # (output_dim,)
    known: bool
    clock: int
    count: int
    updated_ms: int
    source: Literal["mirror", "store"]


def tower_of(name: str) -> Literal["user", "item"]:
    """The tower a path names. Raises Problem 404."""
    if name == "user":
        return "user"
    if name == "item":
        return "item"
    raise Problem(404, "not-found", f"no such tower: it is one of {', '.join(TOWERS)}")


def finite(rows: MirrorRows | Users, tower: Literal["user", "item"], metrics: Metrics) -> TowerRows:
    """Rows with NaN or infinity become missing, and raise an alarm: they must never leave."""
    good = np.isfinite(rows.vectors).all(axis=1)
    found = rows.found & good
    if not good.all():
        metrics.nonfinite(tower, int((rows.found & ~good).sum()))
    source: Literal["mirror", "store"] = "mirror" if tower == "item" else "store"
    return TowerRows(rows.vectors, found, rows.clock, rows.count, rows.updated_ms, source)


def read(service: Service, live: Live, tower: Literal["user", "item"], keys: U64) -> TowerRows:
    """Rows of `keys`: items from the mirror, users from the store. May block. Raises StoreUnavailable for users."""
    if tower == "item":
        return finite(live.mirror.items(keys), tower, service.metrics)
    if service.store_down:
        raise unavailable("store-down", "users are read from the store, which can't be reached: retry later")
    return finite(live.ranker.users(keys), tower, service.metrics)


def at_once(service: Service, live: Live, keys: U64) -> TowerRows | None:
    """Items from the mirror without waiting: None while a refresh or a ranking holds it. For the loop's thread."""
    if not live.mirror.lock.acquire(blocking=False):
        return None
    try:
        return finite(live.mirror.items(keys), "item", service.metrics)
    finally:
        live.mirror.lock.release()


def gathered_at_once(service: Service, live: Live, keys: U64) -> Gathered | None:
    """`at_once`, as a raw batch answers them."""
    if not live.mirror.lock.acquire(blocking=False):
        return None
    try:
        return gathered(service, live, keys)
    finally:
        live.mirror.lock.release()


def gathered(service: Service, live: Live, keys: U64) -> Gathered:
    """Items from the mirror as a raw batch answers them. May wait for it."""
    rows = live.mirror.gathered(keys)
    if rows.refused:
        service.metrics.nonfinite("item", rows.refused)
    return rows


def first_of(rows: TowerRows) -> TowerRow:
    """The first of several."""
    if not rows.found[0]:
        return TowerRow(rows.vectors[0], False, 0, 0, 0, rows.source)
    clock, count, updated_ms = (int(column[0]) for column in (rows.clock, rows.count, rows.updated_ms))
    return TowerRow(rows.vectors[0], True, clock, count, updated_ms, rows.source)


def one_at_once(service: Service, live: Live, keys: U64) -> TowerRow | None:
    """`at_once` of a single key (1,), at a third of its cost."""
    if not live.mirror.lock.acquire(blocking=False):
        return None
    try:
        found = live.mirror.item(keys)
        if found is None or not math.isfinite(found[0] @ found[0]):  # missing, not finite, or too long to tell so
            return first_of(finite(live.mirror.items(keys), "item", service.metrics))
    finally:
        live.mirror.lock.release()
    vector, clock, count, updated_ms = found
    return TowerRow(vector, True, clock, count, updated_ms, "mirror")


def initial(live: Live, tower: Literal["user", "item"], keys: U64) -> F32:
    """(n, output_dim) vectors that unknown ids start with. May block. Raises StoreUnavailable.

    An item starts at its table's initial row, a pure function of seed and key. A user without history is pooled from
    nothing: zeros.
    """
    if tower == "user":
        return np.zeros((len(keys), live.model.output_dim), np.float32)
    vectors = live.store.lookup("item", keys, with_ids=False).vectors
    layers: Layers = ()
    if live.model.dense_layers:
        parameters = DenseParameters(live.model)
        layers = parameters.to_towers(parameters.read(live.store)).item
    if live.mirror.features is not None:
        with live.mirror.lock:
            live.mirror.features.add_to_items(keys, vectors)
    return item_outputs(live.model, layers, vectors)


def with_initial(rows: TowerRows, fill: Callable[[Bool], F32]) -> F32:
    """The rows' vectors, with `fill(missing)` in place of missing ones; finite."""
    missing = ~rows.found
    vectors = rows.vectors.copy()
    if missing.any():
        vectors[missing] = fill(missing)
    return vectors
