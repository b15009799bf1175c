"""Events from HTTP to a real Kafka: what arrives, in which order, and what happens while the broker is away."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from kafka import KafkaConsumer, TopicPartition

from infra.event_sink import KafkaEventSink
from ingest.kafka_client import client_options
from ingest.kafka_topics import prepare_topics
from ingest.settings import IngestSettings, KafkaSettings
from native.features import CATEGORY, REQUEST, Declared, FeatureSchema
from serving.errors import EventRefused, StreamAway
from serving.ranking_schemas import Interaction
from tests.brokers import start_kafka
from tests.servers import free_port

pytestmark = pytest.mark.servers


def _records(kafka: KafkaSettings) -> list[list[bytes]]:
    """Values of each partition."""
    options = client_options(kafka) | {"enable_auto_commit": False}
    consumer = KafkaConsumer(**options)
    partitions = [TopicPartition(kafka.topic, number) for number in range(kafka.partitions)]
    consumer.assign(partitions)
    consumer.seek_to_beginning()
    ends = consumer.end_offsets(partitions)
    values: dict[TopicPartition, list[bytes]] = {partition: [] for partition in partitions}
    deadline = time.monotonic() + 20
    while any(consumer.position(partition) < end for partition, end in ends.items()):
        assert time.monotonic() < deadline, values
        for partition, records in consumer.poll(timeout_ms=100).items():
            values[partition].extend(record.value for record in records)
    consumer.close()
    return [values[partition] for partition in partitions]


def test_events_reach_the_topic_and_bad_ones_reach_nobody(tmp_path: Path) -> None:
    servers, stop = start_kafka(tmp_path)
    sink = None
    try:
        kafka = KafkaSettings(bootstrap_servers=servers, partitions=2)
        prepare_topics(kafka)
        schema = FeatureSchema([Declared("device", REQUEST, CATEGORY)])
        sink = KafkaEventSink(kafka, IngestSettings(max_weight=10), schema)
        sink.produce([Interaction("u1", n, timestamp=1_700_000_000_000 + n) for n in range(20)])
        sink.produce([Interaction(5, "é", label=0, weight=2, features={"device": "phone"})])
        late = Interaction("u1", "i1", timestamp=int(time.time() * 1000) + 10 * 86_400_000)
        for event, field in (
            (Interaction("u1", "i1", weight=11), "weight"),
            (Interaction("u1", "i1", timestamp=1_700_000_000), "timestamp"),
            (late, "timestamp"),
            (Interaction("u1", "i1", features={"device": 1.5}), "features"),
        ):
            with pytest.raises(EventRefused) as refused:
                sink.produce([Interaction("never", "sent"), event])
            assert (refused.value.index, refused.value.field) == (1, field)
        events = [list(map(json.loads, values)) for values in _records(kafka)]
        (of_u1,) = (
            [e for e in part if e["user_id"] == "u1"] for part in events if any(e["user_id"] == "u1" for e in part)
        )
        assert [event["item_id"] for event in of_u1] == list(range(20)), "one partition, in order"
        others = [event for part in events for event in part if event["user_id"] != "u1"]
        given = {"user_id": 5, "item_id": "é", "label": 0.0, "weight": 2.0, "features": {"device": "phone"}}
        assert others == [given]
    finally:
        if sink is not None:
            sink.close()
        stop()


def test_a_broker_that_is_away_is_told_within_seconds() -> None:
    kafka = KafkaSettings(bootstrap_servers=f"127.0.0.1:{free_port()}", request_timeout_ms=1000)
    sink = KafkaEventSink(kafka, IngestSettings())
    started = time.monotonic()
    with pytest.raises(StreamAway):
        sink.produce([Interaction("u1", "i1")])
    assert time.monotonic() - started < 15
    with pytest.raises(StreamAway, match="a moment ago"):
        sink.produce([Interaction("u1", "i1")])
    sink.close()
