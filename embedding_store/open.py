"""Opening the store that the settings name."""

from __future__ import annotations

from embedding_store.contract import EmbeddingStore
from embedding_store.redis_store.store import RedisStore
from embedding_store.settings import RedisSettings


def open_store(settings: RedisSettings) -> EmbeddingStore:
    """A connected store. Raises StoreMisconfigured (evicting, too old, wrong credentials), StoreUnavailable."""
    return RedisStore(settings)
