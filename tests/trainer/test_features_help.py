"""A stream in which context decides: what features are worth there, test then train."""

from __future__ import annotations

import json

import numpy as np

from embedding_store.features import Feature
from embedding_store.memory import MemoryStore
from embedding_store.model import ModelSettings
from ingest.columns import Partition
from ingest.listed import ListedSource
from ingest.settings import IngestSettings
from tests.streams import Shop, make_shop
from trainer.metrics import Metrics
from trainer.settings import TrainerSettings
from trainer.worker import Worker

GENRE = Feature(name="genre", of="item", kind="category")
DEVICE = Feature(name="device", of="request", kind="category")
START_MS = 1_700_000_000_000


def hit_rate(shop: Shop, *features: Feature) -> float:
    """HR@10 of a worker over the whole stream, with those of its features that are declared."""
    log = [
        json.dumps(
            {"user_id": int(user), "item_id": int(item), "timestamp": START_MS + n,
             "features": {"genre": int(genre), "device": "tv" if tv else "phone"}}
        ).encode()
        for n, (user, item, genre, tv) in enumerate(zip(*shop, strict=True))
    ]  # fmt: skip
    model = ModelSettings.model_validate({"dim": 16, "history_length": 10, "shards": 1, "features": features})
    source = ListedSource({Partition("shop", 0): log}, IngestSettings(batch_events=64), START_MS, model.feature_schema)
    settings = TrainerSettings.model_validate({"passes": 2, "replay": 2, "evaluate_share": 1.0, "group": 128})
    metrics = Metrics()
    Worker(MemoryStore(), source, model, settings, metrics).run(lambda: source.exhausted)
    sample = metrics.registry.get_sample_value
    assert sample("towline_prequential_tests") == len(np.unique(np.stack([shop.users, shop.items], 1), axis=0))
    assert not sample("towline_trainer_quarantined_total")
    return (sample("towline_prequential_hits", {"ranking": "model"}) or 0) / len(log)


def test_features_help_where_items_are_new() -> None:
    """What an item's genre has learned is there before its own row has; a device adds to it."""
    shop = make_shop(shelf=10, renewed=40)
    without, genre, both = hit_rate(shop), hit_rate(shop, GENRE), hit_rate(shop, GENRE, DEVICE)
    assert genre > 1.2 * without
    assert both > 1.1 * genre


def test_the_device_of_requests_helps_where_it_decides() -> None:
    shop = make_shop(shelf=30, renewed=0)
    assert hit_rate(shop, DEVICE) > 1.15 * hit_rate(shop)
