"""Servers of their own for tests that break them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from embedding_store.contract import EmbeddingStore
from embedding_store.open import open_store
from embedding_store.settings import RedisSettings
from tests.servers import RedisServer, running, server_names

KINDS = [*((name, "stock") for name in server_names()), (server_names()[0], "module")]
"""Server and backend. Most of what breaks around a server is the same for either backend."""


@pytest.fixture(params=[pytest.param(kind, marks=pytest.mark.servers, id="-".join(kind)) for kind in KINDS])
def kind(request: pytest.FixtureRequest) -> tuple[str, str]:
    return request.param


@pytest.fixture
def backend(kind: tuple[str, str]) -> str:
    return kind[1]


@pytest.fixture
def start(
    kind: tuple[str, str],
    tmp_path_factory: pytest.TempPathFactory,
    module_options: Callable[[], tuple[str, ...]],
) -> Iterator[Callable[..., RedisServer]]:
    """Starts servers of one kind with the options given, and with the module if that is the backend."""
    server, backend = kind
    loaded = module_options() if backend == "module" else ()
    with ExitStack() as stack:
        yield lambda *options, port=0: stack.enter_context(
            running(server, tmp_path_factory.mktemp("server"), *loaded, *options, port=port)
        )


@pytest.fixture
def server(start: Callable[..., RedisServer]) -> RedisServer:
    return start("--appendonly", "yes", "--appendfsync", "always")


@pytest.fixture
def connect(backend: str) -> Iterator[Callable[..., EmbeddingStore]]:
    """Opens stores with the settings given and closes them at the end."""
    stores: list[EmbeddingStore] = []

    def get(url: str, **settings: object) -> EmbeddingStore:
        wanted = {"url": url, "timeout_s": 2.0, "backend": backend, **settings}
        stores.append(open_store(RedisSettings.model_validate(wanted)))
        return stores[-1]

    yield get
    for store in stores:
        store.close()
