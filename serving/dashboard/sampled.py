"""The item map: a sample of items in two dimensions, and which of them were updated since the last look."""

from __future__ import annotations

import msgspec
import numpy as np

from embedding_store.contract import F32, I64, U64
from serving.service import Live

_POPULAR, _SPREAD = 150, 250


class Points(msgspec.Struct, frozen=True):
    """Places of the sampled items, in the order of `SampledItems.ids`."""

    x: list[float]  # each to three digits: a screen has no more
    y: list[float]
    updated: list[int]  # index of those updated since the last look


class SampledItems:
    """Popular items and some spread over the rest, on the two directions in which they differ most.

    The directions are those of the first look (principal components), so that points move only as rows do.
    """

    def __init__(self, live: Live) -> None:
        """May take a millisecond: not for the loop. No more than 400 items."""
        none = np.zeros(0, np.uint64)
        popular = live.ranker.recommend(None, exclude=none, k=_POPULAR).keys
        self._keys: U64 = np.unique(np.concatenate([popular, live.mirror.spread(_SPREAD)]))
        with live.mirror.lock:
            slots = live.mirror.slots(self._keys)
            self._keys = self._keys[slots >= 0]
            _, ids, _, _ = live.mirror.describe(slots[slots >= 0])
        keys = self._keys.tolist()
        self.ids = [identity.decode() or str(key) for key, identity in zip(keys, ids, strict=True)]
        self.live = live
        self.size = live.mirror.size
        vectors = _finite(live.mirror.items(self._keys).vectors)
        self._centre = vectors.mean(axis=0) if len(vectors) else np.zeros(vectors.shape[1], np.float32)
        self._axes = _principal(vectors - self._centre)
        self._clocks: I64 = live.mirror.items(self._keys).clock

    def points(self) -> Points:
        """Where they are now."""
        rows = self.live.mirror.items(self._keys)
        places = np.round((_finite(rows.vectors) - self._centre) @ self._axes.T, 3)
        moved = np.flatnonzero(rows.clock > self._clocks)
        self._clocks = rows.clock
        return Points(places[:, 0].tolist(), places[:, 1].tolist(), moved.tolist())


def _finite(vectors: F32) -> F32:
    return np.nan_to_num(vectors, nan=0.0, posinf=0.0, neginf=0.0)


def _principal(centred: F32) -> F32:
    """(2, dim) orthonormal directions of the most variance; zeros where there are fewer."""
    out = np.zeros((2, centred.shape[1]), np.float32)
    if len(centred):
        _, _, axes = np.linalg.svd(centred, full_matrices=False)
        out[: min(2, len(axes))] = axes[:2]
    return out
