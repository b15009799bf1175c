"""What a consumer that belongs to no group finds of a topic."""

from __future__ import annotations

from dataclasses import dataclass

from kafka import KafkaConsumer, TopicPartition

from ingest.columns import Partition
from ingest.contract import StreamMisconfigured
from ingest.kafka_client import topic_identity
from ingest.settings import KafkaSettings


@dataclass(frozen=True, slots=True)
class TopicBounds:
    """Of each partition: its source, the first offset kept, and the end of what is committed or not transactional."""

    names: dict[TopicPartition, Partition]
    first: dict[TopicPartition, int]
    last: dict[TopicPartition, int]


def topic_bounds(consumer: KafkaConsumer, settings: KafkaSettings) -> TopicBounds:
    """Of `settings.topic`, as it is now. Raises StreamMisconfigured if there is none, and the client's errors."""
    numbers = consumer.partitions_for_topic(settings.topic)
    if not numbers:
        raise StreamMisconfigured(
            f"there is no topic {settings.topic!r} at {settings.bootstrap_servers}; check the name"
        )
    identity = topic_identity(settings, consumer._cluster.topic_id(settings.topic))
    names = {TopicPartition(settings.topic, number): Partition(identity, number) for number in sorted(numbers)}
    return TopicBounds(names, consumer.beginning_offsets([*names]), consumer.end_offsets([*names]))
