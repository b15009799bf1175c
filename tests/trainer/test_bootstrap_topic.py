"""Past events from a range of a topic, shared by trainers, and then the live stream: no gap, no overlap."""

from __future__ import annotations

import threading
import uuid
from collections import Counter

import pytest
from kafka import KafkaAdminClient, KafkaProducer, TopicPartition

from embedding_store.contract import EmbeddingStore, Source
from embedding_store.memory import MemoryStore
from embedding_store.open import open_store
from embedding_store.settings import RedisSettings
from ingest.contract import StreamMisconfigured
from ingest.history_topic import HistoryTopic, TopicRange
from ingest.kafka_client import client_options
from ingest.kafka_source import KafkaSource
from ingest.kafka_topics import prepare_topics
from ingest.settings import IngestSettings, KafkaSettings
from tests.trainer.test_exactly_once import (
    MODEL,
    Killed,
    faults,  # noqa: F401  a fixture
    settings_of,
)
from trainer.bootstrap import History, learn_history, open_history
from trainer.metrics import Metrics
from trainer.worker import Worker

pytestmark = pytest.mark.servers
SMALL = IngestSettings(batch_events=16, batch_wait_ms=5)
START_MS = 1_767_225_600_000  # 2026-01-01
DAY_MS = 86_400_000


@pytest.fixture
def kafka(broker: str) -> KafkaSettings:
    name = uuid.uuid4().hex[:8]
    return KafkaSettings(
        bootstrap_servers=broker, topic=f"live-{name}", dead_letter_topic=f"dead-{name}", group=f"group-{name}",
        partitions=2, session_timeout_ms=6_000, request_timeout_ms=15_000,
    )  # fmt: skip


def fill(kafka: KafkaSettings, topic: str, days: range, events_a_day: int = 20) -> Counter[int]:
    """Events by item, of those days."""
    prepare_topics(kafka.model_copy(update={"topic": topic}))
    producer = KafkaProducer(**client_options(kafka))
    counts: Counter[int] = Counter()
    for day in days:
        for n in range(events_a_day):
            item, ms = 100 + (n + day) % 7, START_MS + day * DAY_MS + n
            value = f'{{"user_id": {n % 5}, "item_id": {item}, "timestamp": {ms}}}'.encode()
            producer.send(topic, value, partition=n % 2, timestamp_ms=ms)
            counts[item] += 1
    producer.flush()
    producer.close()
    return counts


def learned(store: EmbeddingStore) -> dict[int, int]:
    rows = store.changes("item", None)
    return {key: count for key, count in zip(rows.keys.tolist(), rows.rows.count.tolist(), strict=True) if count}


def history_of(text: str, kafka: KafkaSettings) -> History:
    history = open_history(text, kafka, SMALL, lambda: False)
    assert history is not None
    return history


def learn(store: EmbeddingStore, text: str, kafka: KafkaSettings) -> bool:
    return learn_history(store, history_of(text, kafka), MODEL, settings_of(), Metrics(), lambda: False)


def go_live(store: EmbeddingStore, kafka: KafkaSettings) -> None:
    """Learn the live topic up to its end."""
    for spec in MODEL.tables().values():
        store.create(spec)
    source = KafkaSource(kafka, SMALL)
    worker = Worker(store, source, MODEL, settings_of(), Metrics())
    owned = source.assignment(30.0)
    ends = {Source(*p): source.bounds(p)[1] for p in owned}
    try:
        worker.run(lambda: ends.items() <= store.status("item")[0].offsets.items())
    finally:
        source.close()


def test_killed_at_any_moment_a_range_of_another_topic_is_learned_once(faults, kafka):  # noqa: F811
    old = f"old-{uuid.uuid4().hex[:8]}"
    fill(kafka, old, range(3))
    expected = fill(kafka, old, range(3, 7))
    fill(kafka, old, range(7, 9))
    text = f"topic:{old}@2026-01-04..2026-01-08T00:00:00+00:00"
    store = MemoryStore()
    faults.plan = dict.fromkeys((3, 8, 14), Killed)
    deaths = 0
    while True:
        try:
            assert learn(store, text, kafka)
            break
        except Killed:
            deaths += 1
    assert deaths == 3
    assert learned(store) == expected
    assert learn(store, text, kafka), "once learned, never again"
    assert learned(store) == expected
    expected += fill(kafka, kafka.topic, range(10, 12))
    go_live(store, kafka)
    assert learned(store) == expected
    assert {s.clock for t in MODEL.tables() for s in store.status(t)} == {expected.total()}


def test_the_live_topic_begins_at_a_time_instead_of_its_earliest_record(faults, kafka):  # noqa: F811
    fill(kafka, kafka.topic, range(4))
    expected = fill(kafka, kafka.topic, range(4, 6))
    store = MemoryStore()
    assert learn(store, f"topic:{kafka.topic}@2026-01-05", kafka)
    assert learned(store) == {}
    assert learn(store, f"topic:{kafka.topic}@2026-01-05", kafka)
    go_live(store, kafka)
    assert learned(store) == expected
    expected += fill(kafka, kafka.topic, range(6, 7))
    assert learn(store, f"topic:{kafka.topic}@2026-01-05", kafka), "a trainer that is started again with the option"
    go_live(store, kafka)
    assert learned(store) == expected


def test_a_range_that_was_learned_may_be_removed_by_retention(faults, kafka):  # noqa: F811
    old = f"old-{uuid.uuid4().hex[:8]}"
    expected = fill(kafka, old, range(3))
    fill(kafka, old, range(3, 5))
    text, store = f"topic:{old}@2026-01-01..2026-01-04", MemoryStore()
    assert learn(store, text, kafka)
    admin = KafkaAdminClient(**client_options(kafka))
    admin.delete_records({TopicPartition(old, number): 40 for number in range(2)})
    admin.close()
    assert learn(store, text, kafka)
    assert learned(store) == expected


def test_two_trainers_share_the_partitions(server_of, kafka):
    old = f"old-{uuid.uuid4().hex[:8]}"
    expected = fill(kafka, old, range(40))
    server = server_of("redis")
    server.command("FLUSHALL")
    answers: list[bool] = []

    def trainer() -> None:
        store = open_store(RedisSettings(url=server.url))
        try:
            answers.append(learn(store, f"topic:{old}", kafka))
        finally:
            store.close()

    both = [threading.Thread(target=trainer) for _ in range(2)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join(120)
    assert answers == [True, True]
    store = open_store(RedisSettings(url=server.url))
    assert learned(store) == expected
    assert {s.clock for t in MODEL.tables() for s in store.status(t)} == {expected.total()}
    store.close()


def test_a_store_that_stands_before_the_range_is_refused(kafka):
    """What lies between would never be learned."""
    fill(kafka, kafka.topic, range(2))
    store = MemoryStore()
    go_live(store, kafka)
    fill(kafka, kafka.topic, range(2, 6))
    with pytest.raises(StreamMisconfigured, match="up to offset 20, and the range begins at 40"):
        learn(store, f"topic:{kafka.topic}@2026-01-05", kafka)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("topic:", "names no range"),
        ("topic:a b", "names no range"),
        ("topic:old@yesterday", "'yesterday' is no time"),
        ("topic:old@2026-02-01..2026-01-01", "ends before it begins"),
        ("topic:old@1912-06-23", "before 1970"),
    ],
)
def test_a_range_that_means_nothing_is_one_sentence(text, says):
    with pytest.raises(StreamMisconfigured, match=says):
        TopicRange.parse(text)


def test_a_range_that_is_not_there_is_one_sentence(kafka):
    with pytest.raises(StreamMisconfigured, match="there is no topic 'nowhere'"):
        HistoryTopic(TopicRange("nowhere"), kafka, SMALL)
    fill(kafka, kafka.topic, range(1))
    with pytest.raises(StreamMisconfigured, match="is the live topic"):
        HistoryTopic(TopicRange(kafka.topic, None, START_MS), kafka, SMALL)


def test_a_range_before_all_records_or_behind_them(kafka):
    fill(kafka, kafka.topic, range(4))
    live = kafka.model_copy(update={"topic": f"{kafka.topic}-2"})
    for which, spans in {
        TopicRange(kafka.topic, None, START_MS): {(0, 0)},
        TopicRange(kafka.topic, START_MS + 100 * DAY_MS): {(40, 40)},
        TopicRange(kafka.topic, 0, START_MS + DAY_MS): {(0, 10)},
        TopicRange(kafka.topic, START_MS + 3 * DAY_MS): {(30, 40)},
    }.items():
        history = HistoryTopic(which, live, SMALL)
        assert {(history.starts[p], history.ends[p]) for p in history.ends} == spans
        history.close()
