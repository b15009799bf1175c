"""A real broker for the tests that need one, started once, and topics of their own for each."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from ingest.settings import KafkaSettings

BROKER_START_S = 30


def pytest_configure(config: pytest.Config) -> None:
    """kafka-python leaves the sockets of failed connections to the garbage collector, which runs when it likes."""
    config.addinivalue_line("filterwarnings", "ignore:unclosed <socket:ResourceWarning")


def start_broker(folder: Path, port: int | None = None) -> tuple[str, Callable[[], None]]:
    """A broker with its data under `folder`: (bootstrap servers, a function that ends it). This alone knows how.

    With `TOWLINE_TEST_BOOTSTRAP` set, the broker found there, which is left alone.
    """
    given = os.environ.get("TOWLINE_TEST_BOOTSTRAP")
    if given and port is None:
        return given, lambda: None
    port = port or free_port()
    spec = find_spec("noida_db")
    assert spec is not None
    assert spec.origin is not None
    program = Path(spec.origin).with_name("noida-db")
    command = [str(program), "start", "--data-dir", str(folder), "--only", "kafka", "--kafka-port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + BROKER_START_S
    while not listening(port):
        assert process.poll() is None, "the broker ended by itself"
        assert time.monotonic() < deadline, "the broker does not listen"
        time.sleep(0.02)

    def stop() -> None:
        process.send_signal(signal.SIGTERM)  # killed outright, this broker loses acknowledged records
        process.wait(10)

    return f"127.0.0.1:{port}", stop


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


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
def kafka(kafka_broker: str) -> KafkaSettings:
    """Settings with topics and a group that no other test uses."""
    return fresh_settings(kafka_broker)


def fresh_settings(bootstrap: str, partitions: int = 2) -> KafkaSettings:
    name = uuid.uuid4().hex[:10]
    return KafkaSettings(
        bootstrap_servers=bootstrap,
        topic=f"events-{name}",
        dead_letter_topic=f"dead-{name}",
        group=f"group-{name}",
        partitions=partitions,
        session_timeout_ms=10_000,
        request_timeout_ms=15_000,
    )


@pytest.fixture
def settings_for() -> Callable[..., KafkaSettings]:
    """`fresh_settings` itself."""
    return fresh_settings
