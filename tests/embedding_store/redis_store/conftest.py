"""Servers of their own for tests that break them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from embedding_store.redis_store.store import RedisStore
from embedding_store.settings import RedisSettings
from tests.servers import RedisServer, running, server_names


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.servers) for name in server_names()])
def start(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., RedisServer]]:
    """Starts servers of one kind with the options given."""
    with ExitStack() as stack:
        yield lambda *options, port=0: stack.enter_context(
            running(request.param, tmp_path_factory.mktemp("server"), *options, port=port)
        )


@pytest.fixture
def server(start: Callable[..., RedisServer]) -> RedisServer:
    return start("--appendonly", "yes", "--appendfsync", "always")


@pytest.fixture
def connect() -> Iterator[Callable[..., RedisStore]]:
    """Opens stores with the settings given and closes them at the end."""
    stores: list[RedisStore] = []

    def get(url: str, **settings: object) -> RedisStore:
        stores.append(RedisStore(RedisSettings.model_validate({"url": url, "timeout_s": 2.0, **settings})))
        return stores[-1]

    yield get
    for store in stores:
        store.close()
