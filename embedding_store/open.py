"""Opening the store that the settings name."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, cast

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


class _Later:
    """Stands for a store; each use of it opens it, until that goes well."""

    def __init__(self, connect: Callable[[], EmbeddingStore]) -> None:
        self._connect, self._lock = connect, threading.Lock()
        self._store: EmbeddingStore | None = None

    def __getattr__(self, name: str) -> Any:
        with self._lock:
            if self._store is None:
                self._store = self._connect()
            found = getattr(self._store, name)
        setattr(self, name, found)
        return found

    def close(self) -> None:
        with self._lock:
            if self._store is not None:
                self._store.close()


def opened_later(connect: Callable[[], EmbeddingStore]) -> EmbeddingStore:
    """A store that is connected when it is first used: its calls raise what `connect` raises, too.

    For who has something to do while the store is away.
    """
    return cast(EmbeddingStore, _Later(connect))
