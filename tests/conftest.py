"""Fixtures that several rooms' tests share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.servers import RedisServer, running


@pytest.fixture(scope="session")
def server_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], RedisServer]]:
    """One server process per kind (`redis`, `valkey`) and session, for tests that flush it and never restart it."""
    started: dict[str, RedisServer] = {}
    with ExitStack() as stack:

        def get(name: str) -> RedisServer:
            if name not in started:
                started[name] = stack.enter_context(running(name, tmp_path_factory.mktemp(name)))
            return started[name]

        yield get
