"""What one worker, whom nothing befalls, leaves behind after the same topic: for the linear model."""

from __future__ import annotations

from embedding_store.memory import MemoryStore
from infra.config import TowlineConfig
from tests.chaos.linear import replace_learner
from tests.chaos.topic_log import TopicLog


def learn_alone(config: TowlineConfig, log: TopicLog) -> MemoryStore:
    """A store in memory after a worker of this process has learned the whole log, in a group of its own."""
    replace_learner()
    from ingest.kafka_source import KafkaSource
    from trainer.metrics import Metrics
    from trainer.worker import Worker

    store = MemoryStore()
    kafka = config.kafka.model_copy(update={"group": "alone"})
    settings = config.trainer.model_copy(update={"apply_every": 1})
    stream = KafkaSource(kafka, config.ingest.model_copy(update={"batch_events": 4096}))
    try:
        worker = Worker(store, stream, config.model, settings, Metrics())
        worker.run(lambda: all(_ends(store, table, log) for table in config.model.tables()))
    finally:
        stream.close()
    return store


def _ends(store: MemoryStore, table: str, log: TopicLog) -> bool:
    if store.published_model() is None:
        return False
    return all(
        {source.partition: offset for source, offset in status.offsets.items()} == dict(log.ends)
        for status in store.status(table)
    )
