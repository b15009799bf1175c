"""The stores that every law is held against: memory; each Redis-compatible server of this machine, and a Cluster, with
the stock backend; and the same with the module.

A Cluster has three masters, so shards and their keys are spread; all laws run on it, with no exception. What survives
a restart or a promotion is in `test_persistence.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from embedding_store.contract import EmbeddingStore
from embedding_store.memory import MemoryStore
from embedding_store.open import open_store
from embedding_store.settings import RedisSettings
from tests.clusters import RedisCluster, running_cluster
from tests.servers import RedisServer, server_names

MODULE = ["module", "module-cluster", *(["module-valkey"] if "valkey" in server_names() else [])]
SERVERS = [*server_names(), "cluster", *MODULE]
BACKENDS = ["memory", *(pytest.param(name, marks=pytest.mark.servers) for name in SERVERS)]


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    """One Cluster for all laws on the stock backend."""
    with running_cluster(server_names()[0], tmp_path_factory.mktemp("cluster")) as started:
        yield started


@pytest.fixture(scope="session")
def module_cluster(
    tmp_path_factory: pytest.TempPathFactory, module_options: Callable[[], tuple[str, ...]]
) -> Iterator[RedisCluster]:
    """One Cluster for all laws on the module."""
    with running_cluster(server_names()[0], tmp_path_factory.mktemp("cluster"), *module_options()) as started:
        yield started


@pytest.fixture(params=BACKENDS)
def opener(
    request: pytest.FixtureRequest, server_of: Callable[[str], RedisServer]
) -> Iterator[Callable[[], EmbeddingStore]]:
    """Opens clients of one empty store; in memory they are one object."""
    if request.param == "memory":
        memory = MemoryStore()
        yield lambda: memory
        return
    backend = "module" if request.param in MODULE else "stock"
    if request.param in ("cluster", "module-cluster"):
        cluster: RedisCluster = request.getfixturevalue(request.param.replace("-", "_"))
        cluster.flush()
        settings = RedisSettings(url=cluster.url, cluster=True, backend=backend)
    else:
        server = server_of(request.param)
        server.command("FLUSHALL")
        settings = RedisSettings(url=server.url, backend=backend)
    stores: list[EmbeddingStore] = []

    def open_one() -> EmbeddingStore:
        stores.append(open_store(settings))
        return stores[-1]

    yield open_one
    for store in stores:
        store.close()


@pytest.fixture
def store(opener: Callable[[], EmbeddingStore]) -> EmbeddingStore:
    return opener()
