"""Past positives to learn again: a uniform sample of the stream this worker has seen."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from native.features import FeatureValues

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
    request: FeatureValues | None = None  # n rows of the event's own; None: no features of requests were ever given


_WIDEST = 64
"""Request features of a positive that are kept."""


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
        # as wide as was ever needed: nothing without features
        self._request_keys, self._request_numbers = np.zeros((n, 0), np.uint64), np.zeros((n, 0), np.uint8)
        self._request_counts = np.zeros(n, np.int64)

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

    def add(
        self, user: U64, item: U64, recent: U64, lengths: I64, ever: I64, request: FeatureValues | None = None
    ) -> None:
        """Offer n positives. request: n rows, of which at most 64 values each are kept."""
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
        self._request_counts[at] = 0
        if request is not None:
            self._add_request(at, request.take(np.flatnonzero(keep)))

    def _add_request(self, at: I64, request: FeatureValues) -> None:
        counts = np.minimum(request.counts, _WIDEST)
        width = int(counts.max(initial=0))
        if width > self._request_keys.shape[1]:
            more = ((0, 0), (0, width - self._request_keys.shape[1]))
            self._request_keys = np.pad(self._request_keys, more)
            self._request_numbers = np.pad(self._request_numbers, more)
        row = np.repeat(np.arange(len(at)), request.counts)
        column = np.arange(len(row)) - request.offsets[:-1][row]
        kept = column < _WIDEST
        self._request_keys[at[row[kept]], column[kept]] = request.key[kept]
        self._request_numbers[at[row[kept]], column[kept]] = request.number[kept]
        self._request_counts[at] = counts

    def draw(self, n: int) -> Replayed:
        """n positives with repeats; none while the buffer is empty."""
        rows = self._rng.integers(0, self._size, n) if self._size else np.zeros(0, np.int64)
        return Replayed(
            self._user[rows], self._item[rows], self._recent[rows], self._lengths[rows], self._ever[rows],
            self._requests(rows),
        )  # fmt: skip

    def _requests(self, rows: I64) -> FeatureValues | None:
        if not self._request_keys.shape[1]:
            return None
        counts = self._request_counts[rows]
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(counts, out=offsets[1:])
        given = np.arange(self._request_keys.shape[1]) < counts[:, None]
        return FeatureValues(offsets, self._request_numbers[rows][given], self._request_keys[rows][given])

    def _grow(self, size: int) -> None:
        if size <= len(self._user):
            return
        n = min(self._capacity, max(size, 2 * len(self._user)))
        mine = (
            "_user",
            "_item",
            "_recent",
            "_lengths",
            "_ever",
            "_request_keys",
            "_request_numbers",
            "_request_counts",
        )
        for name in mine:
            old = getattr(self, name)
            new = np.zeros((n, *old.shape[1:]), old.dtype)
            new[: len(old)] = old
            setattr(self, name, new)
