"""Fixtures that several rooms' tests share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache

import pytest

from native.redis_module.compiler import build_module
from tests.brokers import start_kafka
from tests.servers import RedisServer, running, server_names

MODULE_SERVERS = {"module": server_names()[0], "module-valkey": "valkey"}
"""Kinds of server with the module, and their programs."""


@pytest.fixture(scope="session")
def module_options(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], tuple[str, ...]]:
    """Options of a server with the module loaded, which is built on the first call."""

    @cache
    def options() -> tuple[str, ...]:
        return "--loadmodule", str(build_module(tmp_path_factory.mktemp("built") / "towline.so"))

    return options


@pytest.fixture(scope="session")
def server_of(
    tmp_path_factory: pytest.TempPathFactory, module_options: Callable[[], tuple[str, ...]]
) -> Iterator[Callable[[str], RedisServer]]:
    """One server process per kind and session, for tests that flush it and never restart it.

    Kinds: `redis`, `valkey`; and `module`, `module-valkey`, which have the module loaded.
    """
    started: dict[str, RedisServer] = {}
    with ExitStack() as stack:

        def get(name: str) -> RedisServer:
            if name not in started:
                options = module_options() if name in MODULE_SERVERS else ()
                server = MODULE_SERVERS.get(name, name)
                started[name] = stack.enter_context(running(server, tmp_path_factory.mktemp(name), *options))
            return started[name]

        yield get


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Bootstrap servers of an Apache Kafka of the file's own."""
    bootstrap, stop = start_kafka(tmp_path_factory.mktemp("broker"))
    yield bootstrap
    stop()
