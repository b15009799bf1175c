"""The whole product on real servers: Apache Kafka, Redis, a trainer process and a serving process."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from embedding_store.contract import EmbeddingStore
from embedding_store.errors import UnknownTable
from embedding_store.open import open_store
from infra.config import TowlineConfig
from infra.local.ports import ephemeral
from infra.local.stack import LocalStack
from ingest.kafka_topics import prepare_topics
from ingest.producer import EventProducer

DEADLINE_S = 90.0  # a first trainer imports TensorFlow and compiles kernels, on a machine that does other things too


@dataclass
class Product:
    """A running deployment and a client's ways into it."""

    stack: LocalStack
    config: TowlineConfig
    producer: EventProducer
    store: EmbeddingStore

    def get(self, path: str) -> tuple[int, Any]:
        """(status, decoded body) of a GET."""
        connection = http.client.HTTPConnection("127.0.0.1", self.config.serving.port, timeout=10)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()

    def post(self, path: str, body: Any) -> tuple[int, Any]:
        """(status, decoded body) of a POST of JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.config.serving.port, timeout=10)
        try:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()

    def embedding(self, tower: str, entity: str | int) -> dict[str, Any] | None:
        """The served embedding, None while it is unknown or nothing is served yet."""
        status, body = self.get(f"/v1/embeddings/{tower}/{entity}")
        return body if status == 200 else None

    def clock(self) -> int:
        """Usable events that every shard of items and histories has applied; 0 before a trainer has declared them."""
        try:
            return min(s.clock for table in ("item", "history") for s in self.store.status(table))
        except UnknownTable:
            return 0

    def pid(self, kind: str) -> int:
        """Process id of a part of the stack."""
        return next(line.pid for line in self.stack.status() if line.kind == kind)


def until(condition: Callable[[], Any], what: str, deadline_s: float = DEADLINE_S) -> Any:
    """The first true value of `condition`, asked again and again; past the deadline the test fails naming `what`."""
    end = time.monotonic() + deadline_s
    while True:
        try:
            if value := condition():
                return value
            seen: object = value
        except OSError as error:  # the service is not listening yet
            seen = error
        if time.monotonic() > end:
            raise AssertionError(f"{what}: not within {deadline_s:.0f} s, last seen {seen!r}")
        time.sleep(0.02)


@pytest.fixture(scope="module")
def product(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    """Started once per module; tests use ids of their own."""
    folder: Path = tmp_path_factory.mktemp("product")
    config = TowlineConfig.model_validate(
        {
            "kafka": {"partitions": 4, "session_timeout_ms": 6000},
            "ingest": {"batch_wait_ms": 10},
            "model": {"dim": 16, "shards": 2},
            "trainer": {"evaluate_share": 1.0, "reconcile_every_s": 1.0, "metrics_port": ephemeral()},
            "serving": {"port": ephemeral(), "events": True},
            "local": {"state_dir": folder, "broker": "kafka", "trainers": 2},
        }
    )
    stack = LocalStack(config, ephemeral_ports=True)
    try:
        stack.start_servers()
        config = stack.connected()
        prepare_topics(config.kafka)
        stack.start_services()
        store = open_store(config.redis)
        with EventProducer(config.kafka) as producer:
            yield Product(stack, config, producer, store)
        store.close()
    finally:
        stack.stop()
