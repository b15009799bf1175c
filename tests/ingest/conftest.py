"""A real broker for the tests that need one, started once, and topics of their own for each."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from ingest.settings import Client, KafkaSettings
from tests.brokers import kafka_stack


def start_broker(folder: Path, port: int = 0) -> tuple[str, Callable[[], None]]:
    """Apache Kafka with its data under `folder`, on `port` if given: (bootstrap servers, a function that kills it)."""
    stack = kafka_stack(folder, port)
    bootstrap = stack.start_servers().bootstrap_servers

    def kill() -> None:
        pid = next(line.pid for line in stack.status() if line.kind == "broker")
        os.kill(pid, signal.SIGKILL)
        stack.stop()  # reaps it and forgets it; the data stays

    return bootstrap, kill


@pytest.fixture(scope="session")
def kafka_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Bootstrap servers of a broker that lives as long as the session."""
    bootstrap, stop = start_broker(tmp_path_factory.mktemp("broker"))
    yield bootstrap
    stop()


@pytest.fixture
def broker_starter() -> Callable[..., tuple[str, Callable[[], None]]]:
    """`start_broker` itself, for tests that kill one."""
    return start_broker


@pytest.fixture
def client() -> Client:
    """What a source reads with; files whose tests are of all of them have a fixture of that name with parameters."""
    return "kafka-python"


@pytest.fixture
def kafka(kafka_broker: str, client: Client) -> KafkaSettings:
    """Settings with topics and a group that no other test uses."""
    return fresh_settings(kafka_broker, client=client)


def fresh_settings(bootstrap: str, partitions: int = 2, client: Client = "kafka-python") -> KafkaSettings:
    name = uuid.uuid4().hex[:10]
    return KafkaSettings(
        bootstrap_servers=bootstrap,
        client=client,
        topic=f"events-{name}",
        dead_letter_topic=f"dead-{name}",
        group=f"group-{name}",
        partitions=partitions,
        session_timeout_ms=10_000,
        request_timeout_ms=15_000,
    )


@pytest.fixture
def settings_for(client: Client) -> Callable[..., KafkaSettings]:
    """`fresh_settings` itself."""
    return partial(fresh_settings, client=client)
