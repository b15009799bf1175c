"""What the store and the topic say of one id. Reads only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from embedding_store.contract import F32, U64, EmbeddingStore, Range, ShardStatus
from embedding_store.flush_parts import by_shard
from embedding_store.model import ModelSettings
from embedding_store.spec import TableSpec
from infra.errors import InfraError
from ingest.contract import IngestError
from ingest.topic_search import Found
from native.identity import canonical, key_and_check
from native.ragged import Ragged


@dataclass(frozen=True, slots=True)
class Entry:
    """A positive of a user's history."""

    item_id: str
    time_ms: int
    weight: float
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class Row:
    """A row as it is stored. vector: an item's, or a user's own id vector; None where the model has none."""

    clock: int
    events: int
    updated_ms: int
    vector: F32 | None
    history: tuple[Entry, ...]  # of a user, newest first


@dataclass(frozen=True, slots=True)
class Facts:
    """Of one id."""

    tower: str
    identity: str
    key: int
    spec: TableSpec  # of the table that has the id's row: item, or history
    shard: int
    status: ShardStatus
    row: Row | None
    taken: bool  # by another id
    excluded: tuple[Range, ...]
    topic: str
    found: Found | None  # None: the topic could not be asked
    away: str  # why not


def gather(store: EmbeddingStore, tower: str, entity: str, topic: str, search: Callable[[bytes, int], Found]) -> Facts:
    """Ask the store, then the topic by `search(identity, key)`. Raises InfraError, StoreError."""
    document = store.published_model()
    if document is None:
        raise InfraError("no model is published in this store: no trainer has run on it yet")
    model = ModelSettings.from_document(document)
    identity = canonical(entity)
    key, check = key_and_check(identity)
    keys = np.array([key], np.uint64)
    spec = model.tables()["item" if tower == "item" else "history"]
    shard = int(np.flatnonzero(np.diff(by_shard(keys, spec.shards)[1]))[0])
    status = store.status(spec.name)[shard]
    row = _item(store, keys) if tower == "item" else _user(store, model, keys)
    taken = store.taken(spec.name, keys, np.array([check], np.uint32), Ragged.of([identity]))
    excluded = store.excluded()
    found, away = None, ""
    try:
        found = search(identity, key)
    except IngestError as error:
        away = str(error)
    return Facts(tower, entity, key, spec, shard, status, row, bool(taken[0]), excluded, topic, found, away)


def _item(store: EmbeddingStore, keys: U64) -> Row | None:
    rows = store.lookup("item", keys)
    if not rows.found[0]:
        return None
    return Row(int(rows.clock[0]), int(rows.count[0]), int(rows.updated_ms[0]), rows.vectors[0], ())


def _user(store: EmbeddingStore, model: ModelSettings, keys: U64) -> Row | None:
    histories = store.histories("history", keys)
    if not histories.found[0]:
        return None
    own = store.lookup("user", keys, with_ids=False) if model.user_id_vector else None
    vector = own.vectors[0] if own is not None and own.found[0] else None
    entries = histories.entries[::-1]
    ids = store.lookup("item", entries["item"].copy()).ids
    history = tuple(
        Entry(
            ids.at(i).decode() or str(int(entry["item"])),
            int(entry["time_ms"]),
            float(entry["weight"]),
            int(entry["partition"]),
            int(entry["place"]) >> 16,
        )
        for i, entry in enumerate(entries)
    )
    return Row(int(histories.clock[0]), int(histories.count[0]), int(histories.updated_ms[0]), vector, history)
