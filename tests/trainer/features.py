"""A stream whose events bring features, and what the store must hold of them."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np

from embedding_store.contract import EmbeddingStore
from embedding_store.feature_mirror import read_values
from embedding_store.features import Feature
from embedding_store.model import ModelSettings
from ingest.columns import Partition
from ingest.listed import ListedSource
from ingest.settings import IngestSettings
from native.features import FeatureSchema, keys_of
from tests.trainer.small import TOPIC

START_MS = 1_700_000_000_000
FEATURES = (
    Feature(name="genre", of="item", kind="categories"),
    Feature(name="price", of="item", kind="number", log_buckets=True),
    Feature(name="age", of="user", kind="number", boundaries=(18, 25, 40)),
    Feature(name="device", of="request", kind="category"),
    Feature(name="tags", of="request", kind="categories", hash_buckets=5),
)
MODEL = ModelSettings(dim=6, history_length=3, seen_length=8, shards=2, features=FEATURES)


def topic(seed: int, partitions: int = 2, records: int = 60) -> dict[Partition, list[bytes]]:
    """Messages; features are missing in half of them, and times are out of order."""
    rng = random.Random(seed)
    logs: dict[Partition, list[bytes]] = {}
    for p in range(partitions):
        logs[Partition(TOPIC, p)] = log = []
        for offset in range(records):
            user, item = 10 * p + rng.randrange(5), 100 + rng.randrange(12)
            event: dict[str, Any] = {"timestamp": START_MS + 10 * offset - rng.choice([0, 0, 300])}
            chance = rng.random()
            if chance < 0.1:
                event |= {"item_id": item, "features": {"genre": rng.sample("abcd", rng.randrange(3))}}
            elif chance < 0.2:
                event |= {"user_id": user, "features": {"age": rng.randrange(60)}}
            else:
                event |= {"user_id": user, "item_id": item, "label": int(rng.random() < 0.8)}
                if rng.random() < 0.5:
                    event["features"] = {
                        "genre": rng.sample("abcd", rng.randrange(3)), "price": rng.uniform(-5, 90),
                        "device": rng.choice(["phone", "tv", None]), "tags": rng.sample(range(50), 3),
                        **({"age": rng.randrange(60)} if rng.random() < 0.5 else {}),
                    }  # fmt: skip
            log.append(json.dumps(event).encode())
    return logs


def source_of(logs: dict[Partition, list[bytes]], model: ModelSettings = MODEL, batch: int = 7) -> ListedSource:
    return ListedSource(logs, IngestSettings(batch_events=batch), START_MS, model.feature_schema)


def newest(logs: dict[Partition, list[bytes]], side: str, model: ModelSettings = MODEL) -> dict[int, list[int]]:
    """id → keys of the values that its newest event told, by going through the topic."""
    schema: FeatureSchema = model.feature_schema
    own = {f.name for f in model.features if f.of == side}
    found: dict[int, tuple[tuple[int, int, int], list[int]]] = {}
    for partition, log in logs.items():
        for offset, value in enumerate(log):
            event = json.loads(value)
            given = {n: v for n, v in event.get("features", {}).items() if n in own}
            keys = [
                k for n, v in given.items() if v is not None for k in keys_of(schema.declared[schema.by_name[n]], v)
            ]
            alone = ("user_id" in event) != ("item_id" in event)
            if f"{side}_id" not in event or not given or (not keys and not alone):
                continue
            order = (event["timestamp"], partition.number, offset)
            if order > found.get(event[f"{side}_id"], ((0, 0, 0), []))[0]:
                found[event[f"{side}_id"]] = order, keys
    return {one: keys for one, (_, keys) in found.items()}


def kept(store: EmbeddingStore, side: str, model: ModelSettings = MODEL) -> dict[int, list[int]]:
    """id → keys of the values that the store keeps."""
    table = f"{side}_features"
    ids = np.sort(store.changes(table, None).keys)
    values = read_values(store, model.feature_schema, table, ids)
    return {one: values.take(np.array([i])).key.tolist() for i, one in enumerate(ids.tolist())}
