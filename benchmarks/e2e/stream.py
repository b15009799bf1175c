"""Made-up events as JSON lines of one width, built by arithmetic: sending must not cost what learning does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_LINE = b'{"user_id":1000000000,"item_id":1000000000,"label":1,"timestamp":1700000000000}'
_USER, _ITEM, _TIME = _LINE.index(b"1000000000"), _LINE.rindex(b"1000000000"), _LINE.index(b"1700")
_DIGITS, _TIME_DIGITS = 10, 13
FIRST_ID = 1_000_000_000
"""Ids have ten digits."""

WIDTH = len(_LINE) + 1
"""Bytes of an event, its newline included."""


@dataclass(frozen=True, slots=True)
class Stream:
    """n events by Zipf-like users on Zipf-like items, in the order in which they happen."""

    user: npt.NDArray[np.int64]  # (n,)
    item: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.user)

    @classmethod
    def drawn(cls, events: int, users: int, items: int, seed: int = 1) -> Stream:
        """Ranks with probability ∝ 1 / (rank + 10)."""
        rng = np.random.default_rng(seed)
        return cls(FIRST_ID + _zipf(rng, events, users), FIRST_ID + _zipf(rng, events, items))

    def lines(self, time_ms: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
        """(n, WIDTH) the events as text, a newline at the end of each. time_ms (n,)."""
        out = np.empty((len(self), WIDTH), np.uint8)
        out[:] = np.frombuffer(_LINE + b"\n", np.uint8)
        _write(out[:, _USER : _USER + _DIGITS], self.user)
        _write(out[:, _ITEM : _ITEM + _DIGITS], self.item)
        _write(out[:, _TIME : _TIME + _TIME_DIGITS], time_ms)
        return out

    def part(self, start: int, stop: int) -> Stream:
        """Events [start, stop)."""
        return Stream(self.user[start:stop], self.item[start:stop])

    def records(self, time_ms: npt.NDArray[np.int64], partitions: int, per_record: int) -> Iterator[tuple[int, bytes]]:
        """(partition, record value), up to `per_record` events in each; all events of a user are in one partition."""
        text = self.lines(time_ms)
        for partition in range(partitions):
            mine = text[self.user % partitions == partition]
            for start in range(0, len(mine), per_record):
                yield partition, mine[start : start + per_record].tobytes()[:-1]


def _zipf(rng: np.random.Generator, n: int, ranks: int) -> npt.NDArray[np.int64]:
    share = 1.0 / (10.0 + np.arange(ranks))
    cumulated = np.cumsum(share)
    return np.searchsorted(cumulated, rng.random(n) * cumulated[-1]).clip(0, ranks - 1).astype(np.int64)


def _write(digits: npt.NDArray[np.uint8], numbers: npt.NDArray[np.int64]) -> None:
    left = numbers.copy()
    for place in range(digits.shape[1] - 1, -1, -1):
        digits[:, place] = 48 + left % 10
        left //= 10
