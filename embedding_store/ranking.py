"""From a user's history to ranked items: one function for the trainer's evaluation and the service's answers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from embedding_store.contract import F32, I64, U64, Bool, EmbeddingStore, Histories
from embedding_store.mirror import ItemMirror
from embedding_store.model import ModelSettings
from embedding_store.towers import forward
from native.pooling import pool_histories
from native.scan import rank_of, top_k


@dataclass(frozen=True, slots=True)
class Users:
    """Users as they stand; row i answers key i."""

    vectors: F32  # (n, output_dim) outputs of the user tower; zeros where not warm
    found: Bool  # (n,) an event of theirs was applied
    warm: Bool  # (n,) they have something to be personal about: an item of their history, or a vector of their own
    clock: I64  # (n,)
    count: I64  # (n,)
    updated_ms: I64  # (n,)
    seen_offsets: I64  # (n + 1,)
    seen_keys: U64  # items of user i: seen_keys[seen_offsets[i]:seen_offsets[i + 1]], oldest first


@dataclass(frozen=True, slots=True)
class Ranked:
    """Up to k items, best first."""

    keys: U64
    ids: list[bytes]  # canonical bytes
    scores: F32
    clock: I64
    updated_ms: I64


class Ranker:
    """Exact ranking over the mirror."""

    def __init__(self, store: EmbeddingStore, model: ModelSettings, mirror: ItemMirror) -> None:
        self._store, self._model, self._mirror = store, model, mirror

    def users(self, keys: U64) -> Users:
        """Read histories (and id vectors) from the store and run the user tower. Raises StoreUnavailable."""
        histories = self._store.histories("history", keys)
        own = self._store.lookup("user", keys) if self._model.user_id_vector else None
        clock, updated_ms = histories.clock, histories.updated_ms
        if own is not None:
            clock, updated_ms = np.maximum(clock, own.clock), np.maximum(updated_ms, own.updated_ms)
        recent = recent_items(histories, self._model.history_length)
        with self._mirror.lock:
            pooled, warm = self.pool(recent)
            if own is not None:
                pooled, warm = pooled + own.vectors * own.found[:, None], warm | own.found
            vectors = forward(self._mirror.user_layers, pooled) * warm[:, None]
        return Users(
            vectors=vectors.astype(np.float32, copy=False),
            found=histories.found,
            warm=warm,
            clock=clock,
            count=histories.count,
            updated_ms=updated_ms,
            seen_offsets=histories.offsets,
            seen_keys=histories.entries["item"],
        )

    def pool(self, recent: list[U64]) -> tuple[F32, Bool]:
        """((n, dim) pooled histories, (n,) whether any item was known) of n users' newest items, newest first."""
        slots = np.full((len(recent), self._model.history_length), -1, np.int64)
        joined = np.concatenate(recent) if recent else np.zeros(0, np.uint64)
        vectors, found = self._mirror.raw_vectors(joined)
        at = 0
        for i, items in enumerate(recent):
            rows = np.arange(at, at + len(items))
            slots[i, : len(items)] = np.where(found[rows], rows, -1)
            at += len(items)
        pooled = np.zeros((len(recent), self._model.dim), np.float32)
        pool_histories(vectors, slots, self._model.recency, pooled)
        return pooled, np.asarray((slots >= 0).any(axis=1))

    def recommend(self, vector: F32 | None, *, exclude: U64, k: int, only: U64 | None = None) -> Ranked:
        """The k best items for a user vector; None ranks by decayed popularity. Exact.

        exclude: keys left out; only: keys to choose from (unknown ones are ignored). Items that no
        positive event has named are never recommended.
        """
        with self._mirror.lock:
            scores = self._scores(vector, exclude)
            if only is not None:
                chosen = self._mirror.slots(only)
                mask = np.full(len(scores), -np.inf, np.float32)
                mask[chosen[chosen >= 0]] = 0.0
                scores += mask
            slots, best = np.empty(k, np.int64), np.empty(k, np.float32)
            n = top_k(scores, slots, best)
            keys, ids, clock, updated_ms = self._mirror.describe(slots[:n])
        return Ranked(keys, ids, best[:n].copy(), clock, updated_ms)

    def rank(self, vector: F32 | None, *, exclude: U64, target: int) -> float:
        """The place of `target` in what `recommend` would answer: 1 + better + half of the ties; inf if it can't be there."""
        with self._mirror.lock:
            slot = int(self._mirror.slots(np.array([target], np.uint64))[0])
            return float("inf") if slot < 0 else float(rank_of(self._scores(vector, exclude), slot))

    def _scores(self, vector: F32 | None, exclude: U64) -> F32:
        scores = self._mirror.scores(vector, self._model.popularity_weight)
        out = self._mirror.slots(exclude)
        scores[out[out >= 0]] = -np.inf
        return scores


def recent_items(histories: Histories, length: int) -> list[U64]:
    """The newest `length` items of each history, newest first."""
    ends = histories.offsets
    items = histories.entries["item"]
    return [items[max(ends[i], ends[i + 1] - length) : ends[i + 1]][::-1] for i in range(len(ends) - 1)]
