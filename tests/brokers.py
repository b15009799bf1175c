"""Apache Kafka for integration tests: a private broker on an ephemeral port, through the local stack itself."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from infra.config import TowlineConfig
from infra.errors import ServerMissing
from infra.local.stack import LocalStack


def required(server: str) -> bool:
    """Whether TOWLINE_REQUIRE_SERVERS names `server`: then its absence is a failure, not a skip."""
    return server in os.environ.get("TOWLINE_REQUIRE_SERVERS", "").split(",")


def start_kafka(tmp_path: Path) -> tuple[str, Callable[[], object]]:
    """Starts Apache Kafka with its data under `tmp_path`; (bootstrap servers, stop).

    Takes about four seconds, once Kafka's jars are in the cache: share it by a session-scoped fixture. Skips the
    test where Kafka can't be had, unless it is required.
    """
    config = TowlineConfig.model_validate(
        {"redis": {"url": "redis://not-used"}, "local": {"state_dir": tmp_path, "broker": "kafka"}}
    )
    stack = LocalStack(config, ephemeral_ports=True)
    try:
        endpoints = stack.start_servers()
    except ServerMissing as missing:
        if required("kafka"):
            raise
        pytest.skip(str(missing))
    return endpoints.bootstrap_servers, stack.stop
