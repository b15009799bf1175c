"""Apache Kafka for integration tests: a private broker, through the local stack. Where it can't be had, tests fail."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from infra.config import TowlineConfig
from infra.local.stack import LocalStack


def required(server: str) -> bool:
    """Whether TOWLINE_REQUIRE_SERVERS names `server`: then its absence is a failure, not a skip."""
    return server in os.environ.get("TOWLINE_REQUIRE_SERVERS", "").split(",")


def kafka_stack(folder: Path, port: int = 0) -> LocalStack:
    """A stack of nothing but Apache Kafka, with its data under `folder`, on `port` or any free one."""
    config = TowlineConfig.model_validate(
        {"redis": {"url": "redis://not-used"}, "local": {"state_dir": folder, "broker": "kafka", "kafka_port": port}}
    )
    return LocalStack(config, ephemeral_ports=True)


def start_kafka(folder: Path) -> tuple[str, Callable[[], object]]:
    """Starts it: (bootstrap servers, stop). Takes about four seconds, once Kafka's jars are in the cache."""
    stack = kafka_stack(folder)
    return stack.start_servers().bootstrap_servers, stack.stop
