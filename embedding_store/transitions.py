"""First-order transitions: what came next after an item in its users' histories.

Table `next` keeps, per item, the newest `successors` positives that came directly after it: entries of a sequence
table, so that each counts once whatever is replayed. One vector per item can't tell the two directions of a walk apart;
counts can, from the second time on. A transition names no user, and outlives the users it came from as gradients do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from embedding_store.contract import F32, I64, U64, EmbeddingStore, Histories
from native.key_index import unique_keys

TABLE = "next"

SMALL = 0.02
"""A share of what came next that counts half as much again as nothing: ln 2."""


@dataclass(frozen=True, slots=True)
class Boosts:
    """What is added to the scores of a few items, for each of n users; all others get nothing."""

    offsets: I64  # (n + 1,)
    keys: U64  # items of user i, each once: keys[offsets[i]:offsets[i + 1]]
    values: F32  # likewise

    @classmethod
    def none(cls, n: int) -> Boosts:
        """Nothing for n users."""
        return cls(np.zeros(n + 1, np.int64), np.zeros(0, np.uint64), np.zeros(0, np.float32))

    def at(self, i: int) -> Boosts:
        """Those of user i alone."""
        start, stop = self.offsets[i], self.offsets[i + 1]
        return Boosts(np.array([0, stop - start]), self.keys[start:stop], self.values[start:stop])

    def take(self, rows: I64) -> Boosts:
        """Those of some of the users, in the order asked for."""
        counts = np.diff(self.offsets)[rows]
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(counts, out=offsets[1:])
        at = np.arange(offsets[-1]) + np.repeat(self.offsets[:-1][rows] - offsets[:-1], counts)
        return Boosts(offsets, self.keys[at], self.values[at])

    def weighted(self, weights: F32) -> Boosts:
        """Values times the weight of each user (n,)."""
        return Boosts(self.offsets, self.keys, self.values * np.repeat(weights, np.diff(self.offsets)))


class Transitions(Protocol):
    """Where transitions are read."""

    def after(self, newest: U64, known: I64) -> Boosts:
        """`evidence` of what came next after `newest` (m,), where known (m,) is not 0."""


class StoredTransitions:
    """Transitions as they stand in the store."""

    def __init__(self, store: EmbeddingStore) -> None:
        self._store = store

    def after(self, newest: U64, known: I64) -> Boosts:
        """As the protocol says. One read. Raises StoreUnavailable."""
        keys, numbers = unique_keys(newest[known > 0])
        if not len(keys):
            return Boosts.none(len(newest))
        counted = evidence(self._store.histories(TABLE, keys))
        row = np.full(len(newest), len(keys), np.int64)  # one more, which has none
        row[known > 0] = numbers
        return Boosts(np.append(counted.offsets, counted.offsets[-1]), counted.keys, counted.values).take(row)


class FrozenTransitions:
    """Transitions as they stood at some moment."""

    def __init__(self, store: EmbeddingStore) -> None:
        """Reads all of them. Raises StoreUnavailable."""
        keys = np.sort(store.changes(TABLE, None).keys)
        self._keys, self._counted = keys, evidence(store.histories(TABLE, keys))

    def after(self, newest: U64, known: I64) -> Boosts:
        """As the protocol says."""
        if not len(self._keys):
            return Boosts.none(len(newest))
        at = np.minimum(np.searchsorted(self._keys, newest), len(self._keys) - 1)
        counted, there = self._counted, (self._keys[at] == newest) & (known > 0)
        offsets = np.append(counted.offsets, counted.offsets[-1])
        return Boosts(offsets, counted.keys, counted.values).take(np.where(there, at, len(self._keys)))


def evidence(sequences: Histories) -> Boosts:
    """ln(1 + r / SMALL) for each item of a sequence, r its share of the sequence's entries."""
    lengths = np.diff(sequences.offsets)
    owner = np.repeat(np.arange(len(lengths)), lengths)
    items = sequences.entries["item"]
    order = np.lexsort((items, owner))
    owner, items = owner[order], items[order]
    first = np.ones(len(items), np.bool_)
    first[1:] = (owner[1:] != owner[:-1]) | (items[1:] != items[:-1])
    at = np.flatnonzero(first)
    shares = np.diff(np.append(at, len(items))) / lengths[owner[at]]
    offsets = np.searchsorted(owner[at], np.arange(len(lengths) + 1)).astype(np.int64)
    return Boosts(offsets, items[at], np.log1p(shares / SMALL).astype(np.float32))
