"""Transitions: what came after an item in its users' histories, at once or a few places later.

Table `next` keeps, per item, the newest `successors` of the positives that came after it: entries of a sequence table,
so that each counts once whatever is replayed. One vector per item can't tell the two directions of a walk apart; counts
can, from the second time on. A transition names no user, and outlives the users it came from as gradients do.

A positive comes after the newest `REACH` items of its user: after item k (0 the newest), with a weight

    w_k = RECENCY^k / (1 + (t_0 − t_k)² / NEAR_MS²),   0 below LEAST

t_k the item's time: items of one sitting count, older ones hardly. What comes after the newest has weight 1, and
nothing else has. Of a user with items j_0 … there are two shares for item i, direct and near:

    d_i = |entries i of weight 1 in j_0's row| / |entries of weight 1 in it|
    n_i = Σ_k w_k · (summed weight of i in j_k's row) / (summed weight of that row)

and evidence ln(1 + share / max(SMALL, LIFT·p_i)), p_i the item's share of decayed popularity: what comes next anyway,
as it is liked by all, is no evidence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from embedding_store.contract import ENTRY, F32, I64, U64, EmbeddingStore, Histories
from native.key_index import unique_keys
from native.transitions import followers, nearness

TABLE = "next"

REACH = 5
"""Newest items of a user that a positive comes after."""

RECENCY = 0.9
NEAR_MS = 60_000
LEAST = 0.01
"""See above. Chosen on the made-up streams and MovieLens 100K: ARCHITECTURE.md, "Histories and transitions"."""

SMALL, LIFT = 0.005, 30.0
"""A share that counts ln 2, by itself and as a multiple of the item's popularity."""

_PORTION = 4096
"""Rows of the table read by one call where all of them are."""


@dataclass(frozen=True, slots=True)
class Boosts:
    """What is added to the scores of a few items, for each of n users; all others get nothing."""

    offsets: I64  # (n + 1,)
    keys: U64  # items of user i, each once: keys[offsets[i]:offsets[i + 1]]
    values: F32  # likewise

    def at(self, i: int) -> Boosts:
        """Those of user i alone."""
        start, stop = self.offsets[i], self.offsets[i + 1]
        return Boosts(np.array([0, stop - start]), self.keys[start:stop], self.values[start:stop])


@dataclass(frozen=True, slots=True)
class Followers:
    """What came after the newest items of each of n users: shares, before they are told from popularity."""

    offsets: I64  # (n + 1,)
    keys: U64  # items of user i, each once: keys[offsets[i]:offsets[i + 1]]
    direct: F32  # likewise
    near: F32  # likewise

    def take(self, rows: I64) -> Followers:
        """Those of some of the users, in the order asked for."""
        counts = np.diff(self.offsets)[rows]
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(counts, out=offsets[1:])
        at = np.arange(offsets[-1]) + np.repeat(self.offsets[:-1][rows] - offsets[:-1], counts)
        return Followers(offsets, self.keys[at], self.direct[at], self.near[at])

    def boosts(self, log_popularity: F32, half_life: float, worth: F32) -> Boosts:
        """Evidence times what it is worth to each user, direct and near: worth (2, n). log_popularity as `evidence`."""
        weights = np.repeat(worth, np.diff(self.offsets), axis=1)
        values = (evidence(self.direct, self.near, log_popularity, half_life) * weights).sum(axis=0)
        return Boosts(self.offsets, self.keys, values.astype(np.float32, copy=False))


class Transitions(Protocol):
    """Where transitions are read."""

    def after(self, recent: U64, near: F32) -> Followers:
        """Of users with items `recent` (n, r or more), newest first, that count as `near_weights` (n, r) says."""


class StoredTransitions:
    """Transitions as they stand in the store."""

    def __init__(self, store: EmbeddingStore) -> None:
        self._store = store

    def after(self, recent: U64, near: F32) -> Followers:
        """As the protocol says. One read, of the rows of items with a weight. Raises StoreUnavailable."""
        there = near > 0
        keys, numbers = unique_keys(recent[:, : near.shape[1]][there])
        if not len(keys):
            return _nothing(len(near))
        rows = np.full(near.shape, -1, np.int64)
        rows[there] = numbers
        kept = self._store.histories(TABLE, keys)
        return _followers(kept.offsets, kept.entries, rows, near)


class FrozenTransitions:
    """Transitions as they stood at some moment."""

    def __init__(self, store: EmbeddingStore) -> None:
        """Reads all of them, a few thousand rows at a time. Raises StoreUnavailable."""
        self._keys = np.sort(store.changes(TABLE, None).keys)
        parts = [store.histories(TABLE, self._keys[i : i + _PORTION]) for i in range(0, len(self._keys), _PORTION)]
        lengths = np.concatenate([np.zeros(0, np.int64), *(np.diff(part.offsets) for part in parts)])
        self._offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        self._entries = np.concatenate([np.zeros(0, ENTRY), *(part.entries for part in parts)])

    def after(self, recent: U64, near: F32) -> Followers:
        """As the protocol says."""
        if not len(self._keys):
            return _nothing(len(near))
        wanted = recent[:, : near.shape[1]]
        at = np.minimum(np.searchsorted(self._keys, wanted), len(self._keys) - 1)
        rows = np.where((self._keys[at] == wanted) & (near > 0), at, -1)
        return _followers(self._offsets, self._entries, rows, near)


def warm_up() -> None:
    """Compile what a read of somebody with a history needs: nobody has one yet where a service begins."""
    _followers(np.zeros(2, np.int64), np.zeros(0, ENTRY), np.zeros((1, 1), np.int64), np.ones((1, 1), np.float32))


def near_weights(recent: U64, lengths: I64, times_ms: I64) -> F32:
    """(n, r) w_k of items recent (n, r or more), newest first, of which there are lengths (n,), of times_ms (n, r).

    Of an item that is there more than once the newest counts.
    """
    out = np.zeros(times_ms.shape, np.float32)
    nearness(recent, lengths, times_ms, RECENCY, float(NEAR_MS), LEAST, out)
    return out


def newest_of(histories: Histories, length: int) -> tuple[U64, F32]:
    """((n, r) newest items of each history, newest first, (n, r) `near_weights`), r = min(REACH, length)."""
    ends, reach = histories.offsets[1:], min(REACH, length)
    lengths = np.minimum(np.diff(histories.offsets), reach)
    places = ends[:, None] - 1 - np.arange(reach)
    present = np.arange(reach) < lengths[:, None]
    recent, times = np.zeros(places.shape, np.uint64), np.zeros(places.shape, np.int64)
    recent[present] = histories.entries["item"][places[present]]
    times[present] = histories.entries["time_ms"][places[present]]
    return recent, near_weights(recent, lengths, times)


def evidence(direct: F32, near: F32, log_popularity: F32, half_life: float) -> F32:
    """(2, e) what shares (e,) of items say; log_popularity (e,) of their decayed popularity.

    Shares of popularity are as if every event were a positive of weight 1.
    """
    share = np.exp(log_popularity) * np.float32(np.log(2.0) / half_life)
    enough = np.maximum(np.float32(LIFT) * share, np.float32(SMALL))
    out: F32 = np.log1p(np.stack([direct, near]) / enough)
    return out


def _nothing(n: int) -> Followers:
    none = np.zeros(0, np.float32)
    return Followers(np.zeros(n + 1, np.int64), np.zeros(0, np.uint64), none, none)


def _followers(bounds: I64, entries: np.ndarray, rows: I64, near: F32) -> Followers:
    lengths = np.diff(bounds)
    most = int(np.where(rows >= 0, lengths[rows], 0).sum())
    offsets, keys = np.zeros(len(rows) + 1, np.int64), np.empty(most, np.uint64)
    direct, share = np.empty(most, np.float32), np.empty(most, np.float32)
    n = followers(bounds, entries, rows, near, offsets, keys, direct, share)
    return Followers(offsets, keys[:n], direct[:n], share[:n])
