"""Stores whose shards can be put back to an older copy of themselves, as a fail-over to a replica that lags does."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Protocol

import redis

from embedding_store.contract import EmbeddingStore
from embedding_store.memory import MemoryStore
from embedding_store.open import open_store
from embedding_store.settings import RedisSettings
from tests.servers import RedisServer


class Ground(Protocol):
    """An empty store, and copies of its shards."""

    store: EmbeddingStore

    def keep(self, table: str, shard: int) -> Callable[[], None]:
        """Remember a shard as it is; the answer puts it back, behind the back of every client."""

    def close(self) -> None:
        """Let go of it."""


class MemoryGround:
    """In this process."""

    def __init__(self) -> None:
        self.memory = MemoryStore()
        self.store: EmbeddingStore = self.memory

    def keep(self, table: str, shard: int) -> Callable[[], None]:
        s = self.memory._tables[table].shards[shard]
        meta, rows, feed, indexes = s.meta, dict(s.rows), s.feed.copy(), copy.deepcopy(s.indexes)

        def put_back() -> None:
            s.meta, s.rows, s.feed, s.indexes = meta, dict(rows), feed.copy(), copy.deepcopy(indexes)

        return put_back

    def close(self) -> None:
        """Nothing to let go of."""


class ServerGround:
    """On a real server: a shard is all keys of its hash tag, dumped and restored in one transaction."""

    def __init__(self, server: RedisServer, backend: str) -> None:
        self._client = redis.Redis(unix_socket_path=server.socket_path)
        self._client.flushall()
        self.store: EmbeddingStore = open_store(RedisSettings(url=server.url, backend=backend))

    def keep(self, table: str, shard: int) -> Callable[[], None]:
        pattern = f"towline:{{{table}:{shard}}}*"
        names = sorted(self._client.scan_iter(pattern))
        with self._client.pipeline(transaction=True) as reading:
            for name in names:
                reading.dump(name)
            dumps = dict(zip(names, reading.execute(), strict=True))

        def put_back() -> None:
            with self._client.pipeline(transaction=True) as writing:
                if gone := sorted(self._client.scan_iter(pattern)):
                    writing.delete(*gone)
                for name, dump in dumps.items():
                    if dump is not None:
                        writing.restore(name, 0, dump, replace=True)
                writing.execute()

        return put_back

    def close(self) -> None:
        self.store.close()
        self._client.close()
