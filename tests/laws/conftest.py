"""The stores that every law is held against: memory, and each Redis-compatible server of this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from embedding_store.contract import EmbeddingStore
from embedding_store.memory import MemoryStore
from embedding_store.open import open_store
from embedding_store.settings import RedisSettings
from tests.servers import RedisServer, server_names


@pytest.fixture(params=["memory", *(pytest.param(name, marks=pytest.mark.servers) for name in server_names())])
def opener(
    request: pytest.FixtureRequest, server_of: Callable[[str], RedisServer]
) -> Iterator[Callable[[], EmbeddingStore]]:
    """Opens clients of one empty store; in memory they are one object."""
    if request.param == "memory":
        memory = MemoryStore()
        yield lambda: memory
        return
    server = server_of(request.param)
    server.command("FLUSHALL")
    stores: list[EmbeddingStore] = []

    def open_one() -> EmbeddingStore:
        stores.append(open_store(RedisSettings(url=server.url)))
        return stores[-1]

    yield open_one
    for store in stores:
        store.close()


@pytest.fixture
def store(opener: Callable[[], EmbeddingStore]) -> EmbeddingStore:
    return opener()
