"""A store that is full, slow or away: partitions are held, the group still hears of the worker, nothing is lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from embedding_store.contract import EmbeddingStore
from embedding_store.open import open_store
from embedding_store.settings import RedisSettings
from ingest.kafka_source import KafkaSource
from ingest.kafka_topics import prepare_topics
from ingest.producer import Event, EventProducer
from ingest.settings import CLIENTS, IngestSettings, KafkaSettings
from tests.brokers import start_kafka
from tests.servers import RedisServer, running, server_names
from tests.trainer import numpy_step
from tests.trainer.group import Member, Topic
from tests.trainer.small import MODEL, Click, record
from trainer import learner
from trainer.metrics import Metrics
from trainer.settings import TrainerSettings
from trainer.worker import Worker

pytestmark = pytest.mark.servers

START_MS = 1_700_000_000_000
DEADLINE_S = 120.0


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learner, "_compile_step", numpy_step.compile_step)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with running(server_names()[0], tmp_path) as started:
        yield started


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for the condition; past the deadline the test fails naming `what`."""
    end = time.monotonic() + DEADLINE_S
    tick = threading.Event()
    while not condition():
        assert time.monotonic() < end, what
        tick.wait(0.02)


@contextmanager
def at_work(store: EmbeddingStore, source: Member | KafkaSource) -> Iterator[Metrics]:
    """A worker in a thread of its own, told to stop at the end."""
    metrics, stop, faults = Metrics(), threading.Event(), []
    values = {"replay": 0, "group": 16, "evaluate_share": 0.0, "reconcile_every_s": 0.5}

    def work() -> None:
        try:
            Worker(store, source, MODEL, TrainerSettings.model_validate(values), metrics).run(stop.is_set)
        except BaseException as fault:
            faults.append(fault)
            raise

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield metrics
    finally:
        stop.set()
        thread.join(DEADLINE_S)
    assert not faults
    assert not thread.is_alive()


def sample(metrics: Metrics, name: str, **labels: str) -> float:
    return metrics.registry.get_sample_value(f"towline_trainer_{name}", labels) or 0.0


def applied(store: EmbeddingStore) -> int:
    return min((s.clock for table in ("item", "history") for s in store.status(table)), default=0)


class Resting(Member):
    """A member whose waits are real."""

    def stay(self, timeout_s: float) -> None:
        threading.Event().wait(timeout_s)


def test_a_full_store_is_tried_again_ever_more_slowly_and_gets_everything_once_there_is_room(server, caplog):
    topic = Topic("clicks", 1)
    ((_, log),) = topic.logs.items()
    source = Resting(10, START_MS)
    source.tell(topic.logs)
    store = open_store(RedisSettings(url=server.url))
    clicks = [Click(START_MS + n, 0, n << 16, n % 7, 100 + n % 5) for n in range(400)]
    log += [record(c) for c in clicks[:100]]
    caplog.set_level("INFO", "trainer.worker")
    with at_work(store, source) as metrics:
        until(lambda: sample(metrics, "events_total") >= 100 and applied(store) == 100, "the first events")
        server.command("CONFIG", "SET", "maxmemory", "1")
        learned = sample(metrics, "batches_total")
        log += [record(c) for c in clicks[100:]]
        until(lambda: sample(metrics, "away_total", what="store") >= 4, "a store that is full")
        # 0.2 + 0.4 + 0.8 s of waiting for 4 tries, one micro-batch read for each of them: no spin, and no heap of work
        assert sample(metrics, "held") == 1
        assert sample(metrics, "batches_total") - learned <= sample(metrics, "away_total", what="store") + 1
        assert sample(metrics, "held_seconds_total", what="store") >= 1.3
        assert applied(store) == 100
        server.command("CONFIG", "SET", "maxmemory", "0")
        until(lambda: applied(store) == 400, "all events")
        until(lambda: sample(metrics, "held") == 0, "partitions that are read again")
    assert "out of memory" in caplog.text
    assert "all partitions are held" in caplog.text
    assert "going on after" in caplog.text
    assert {s.clock for table in ("item", "history") for s in store.status(table)} == {400}
    assert store.changes("history", None).rows.count.sum() == 400
    store.close()


@pytest.fixture(scope="module")
def kafka_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    bootstrap, stop = start_kafka(tmp_path_factory.mktemp("broker"))
    yield bootstrap
    stop()


@pytest.mark.parametrize("client", CLIENTS)
def test_a_store_that_hangs_for_longer_than_session_and_poll_interval_costs_no_rebalance(server, kafka_broker, client):
    """Kafka sees a member that polls and fetches nothing; nothing is lost, nothing comes twice."""
    kafka = KafkaSettings(
        bootstrap_servers=kafka_broker,
        client=client,
        topic=f"hangs-{client}",
        dead_letter_topic=f"hangs-{client}.dead",
        group=f"hangs-{client}",
        partitions=2,
        session_timeout_ms=6_000,
        max_poll_interval_ms=6_000,
        request_timeout_ms=15_000,
    )
    prepare_topics(kafka)
    store = open_store(RedisSettings(url=server.url, timeout_s=1.0))
    source = KafkaSource(kafka, IngestSettings(batch_events=16), instance="w")

    def send(producer: EventProducer, start: int, stop: int) -> None:
        for n in range(start, stop):
            producer.send(Event(n % 9, 100 + n % 5, label=1, timestamp=START_MS + n))
        producer.flush()

    with EventProducer(kafka) as producer, at_work(store, source) as metrics:
        send(producer, 0, 100)
        until(lambda: sample(metrics, "events_total") >= 100, "the first events")
        until(lambda: applied(store) == 100, "the first events in the store")
        rebalances = source.counters.rebalances
        server.pause()
        try:
            send(producer, 100, 300)
            until(lambda: sample(metrics, "held_seconds_total", what="store") > 9.0, "a store that hangs")
            assert sample(metrics, "held") == 1
        finally:
            server.resume()
        until(lambda: applied(store) == 300, "all events")
        assert source.counters.rebalances == rebalances
    assert store.changes("history", None).rows.count.sum() == 300
    source.close()
    store.close()
