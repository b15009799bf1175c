"""Opening the store that the settings name."""

from __future__ import annotations

from embedding_store.contract import EmbeddingStore
from embedding_store.module_store.store import ModuleStore
from embedding_store.redis_store.backend import chosen
from embedding_store.redis_store.store import RedisStore
from embedding_store.redis_store.topology import Nodes
from embedding_store.settings import RedisSettings


def open_store(settings: RedisSettings) -> EmbeddingStore:
    """A connected store of the backend that keeps it; see `RedisSettings.backend`.

    Raises StoreMisconfigured (evicting, too old, wrong credentials, another backend), StoreUnavailable.
    """
    backend = settings.backend
    if backend == "auto":
        nodes = Nodes(settings)
        try:
            backend = chosen(nodes)
        finally:
            nodes.drop()
    return ModuleStore(settings) if backend == "module" else RedisStore(settings)
