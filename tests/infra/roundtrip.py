"""One record through a broker, one key through a store: what "it runs" means in these tests."""

from __future__ import annotations

import contextlib
import uuid
from typing import Any

import redis
from kafka import KafkaConsumer, KafkaProducer
from kafka.admin import KafkaAdminClient, NewTopic

from ingest.kafka_client import client_options
from ingest.settings import KafkaSettings


def through_kafka(bootstrap: str, topic: str = "roundtrip") -> bytes | None:
    """Creates a topic, produces one record and reads it back through a consumer group."""
    with contextlib.closing(KafkaAdminClient(**_options(bootstrap))) as admin:
        admin.create_topics([NewTopic(topic, num_partitions=1, replication_factor=1)])
    with contextlib.closing(KafkaProducer(**_options(bootstrap))) as producer:
        producer.send(topic, b"an event").get(timeout=30)
    return read_one(bootstrap, topic)


def read_one(bootstrap: str, topic: str = "roundtrip") -> bytes | None:
    """The first record of a topic, through a new group; None if none comes in time."""
    group = uuid.uuid4().hex
    consumer = KafkaConsumer(
        topic, **_options(bootstrap), group_id=group, auto_offset_reset="earliest", consumer_timeout_ms=30_000
    )
    with contextlib.closing(consumer):
        for record in consumer:
            return bytes(record.value)
    return None


def through_redis(url: str) -> bytes | None:
    """Sets a key and gets it."""
    with redis.Redis.from_url(url) as client:
        client.set("roundtrip", b"a row")
        return client.get("roundtrip")


def _options(bootstrap: str) -> dict[str, Any]:
    return client_options(KafkaSettings(bootstrap_servers=bootstrap))
