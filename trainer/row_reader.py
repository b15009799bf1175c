"""Where a trainer's rows come from: the store, or the store with the worker's own writes laid over it."""

from __future__ import annotations

from typing import Protocol

from embedding_store.contract import U64, Histories, Rows


class RowReader(Protocol):
    """The reading half of `EmbeddingStore`, as far as learning needs it."""

    def lookup(self, table: str, keys: U64, *, with_state: bool = False, with_ids: bool = True) -> Rows:
        """As `EmbeddingStore.lookup`."""

    def histories_and_rows(
        self, sequences: str, table: str, keys: U64, *, with_state: bool = False
    ) -> tuple[Histories, Rows]:
        """As `EmbeddingStore.histories_and_rows`."""
