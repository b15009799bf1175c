"""Past positives to learn again: a uniform sample of the stream this worker has seen."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Replayed:
    """n past positives, each with its history as of its own time."""

    user: U64  # (n,)
    item: U64  # (n,)
    recent: U64  # (n, history_length) newest first
    lengths: I64  # (n,) of `recent`
    ever: I64  # (n,) items of the whole history, as of its own time too


class ReplayBuffer:
    """At most `capacity` positives, every one so far equally likely to be kept (Vitter 1985, algorithm R).

    Local to a worker; one that begins anew fills it from the store (`trainer.replay_restore`). Replays only sharpen
    gradients, nothing exact depends on them.
    """

    def __init__(self, capacity: int, history_length: int, rng: np.random.Generator) -> None:
        self._capacity, self._rng = capacity, rng
        self._seen = self._size = 0
        n = min(capacity, 1024)
        self._user, self._item = np.zeros(n, np.uint64), np.zeros(n, np.uint64)
        self._recent, self._lengths = np.zeros((n, history_length), np.uint64), np.zeros(n, np.int64)
        self._ever = np.zeros(n, np.int64)

    def clear(self) -> None:
        """Forget all: the stream is rewound, and what came after may be left out of it now."""
        self._seen = self._size = 0

    @property
    def capacity(self) -> int:
        """The most it keeps."""
        return self._capacity

    def passed_over(self, n: int) -> None:
        """As many more were there as were offered: what is offered later has so much less of a chance."""
        self._seen += n

    def __len__(self) -> int:
        return self._size

    def add(self, user: U64, item: U64, recent: U64, lengths: I64, ever: I64) -> None:
        """Offer n positives."""
        n = len(user)
        places = np.arange(self._size, self._size + n)
        full = places >= self._capacity
        if full.any():
            order = self._seen + np.flatnonzero(full) + 1  # how many were offered up to each of these
            places[full] = self._rng.integers(0, order)
        self._seen += n
        keep = places < self._capacity
        self._grow(min(self._capacity, self._size + n))
        self._size = min(self._capacity, self._size + n)
        at = places[keep]
        self._user[at], self._item[at] = user[keep], item[keep]
        self._recent[at], self._lengths[at], self._ever[at] = recent[keep], lengths[keep], ever[keep]

    def draw(self, n: int) -> Replayed:
        """n positives with repeats; none while the buffer is empty."""
        rows = self._rng.integers(0, self._size, n) if self._size else np.zeros(0, np.int64)
        return Replayed(self._user[rows], self._item[rows], self._recent[rows], self._lengths[rows], self._ever[rows])

    def _grow(self, size: int) -> None:
        if size <= len(self._user):
            return
        n = min(self._capacity, max(size, 2 * len(self._user)))
        for name in ("_user", "_item", "_recent", "_lengths", "_ever"):
            old = getattr(self, name)
            new = np.zeros((n, *old.shape[1:]), old.dtype)
            new[: len(old)] = old
            setattr(self, name, new)
