"""A store as a worker leaves it after a topic with features."""

from __future__ import annotations

from embedding_store.contract import EmbeddingStore
from embedding_store.memory import MemoryStore
from tests.trainer.features import MODEL, source_of, topic
from trainer.metrics import Metrics
from trainer.settings import TrainerSettings
from trainer.worker import Worker


def learned(records: int) -> MemoryStore:
    """After that many records of `topic(0)`, by `MODEL`."""
    store = MemoryStore()
    learn(store, records)
    return store


def learn(store: EmbeddingStore, records: int, seed: int = 0) -> None:
    """That many records of `topic(seed)`, from where the store stands."""
    source = source_of(topic(seed, records=records), MODEL, 50)
    settings = TrainerSettings(replay=1, evaluate_share=0.0, dense_sync_every=1)
    Worker(store, source, MODEL, settings, Metrics()).run(lambda: source.exhausted)
