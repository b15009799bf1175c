"""Columns of byte strings, without a Python object per element."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from native.rows import gather_ragged

U8 = npt.NDArray[np.uint8]
I64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Ragged:
    """n byte strings laid end to end: element i is `data[offsets[i]:offsets[i + 1]]`.

    offsets: (n + 1,) int64, non-decreasing; offsets[0] may be above 0. data: (bytes,) uint8. Both may be read-only.
    """

    offsets: I64
    data: U8

    @classmethod
    def of(cls, values: Iterable[bytes]) -> Ragged:
        """Build from Python byte strings; for tests and cold paths."""
        items = list(values)
        offsets = np.zeros(len(items) + 1, np.int64)
        np.cumsum(np.fromiter(map(len, items), np.int64, len(items)), out=offsets[1:])
        return cls(offsets, np.frombuffer(b"".join(items), np.uint8))

    @classmethod
    def empty(cls) -> Ragged:
        return cls(np.zeros(1, np.int64), np.zeros(0, np.uint8))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> I64:
        """(n,) int64, bytes of each element."""
        return np.diff(self.offsets)

    def at(self, i: int) -> bytes:
        return self.data[self.offsets[i] : self.offsets[i + 1]].tobytes()

    def tolist(self) -> list[bytes]:
        """Every element as bytes; a cold path."""
        return [self.at(i) for i in range(len(self))]

    def take(self, rows: npt.NDArray[np.integer]) -> Ragged:
        """The elements at `rows` (any order, repeats allowed), copied; O(bytes taken)."""
        lengths = self.lengths[rows]
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        out = np.empty(offsets[-1], np.uint8)
        starts = self.offsets[:-1][rows]
        gather_ragged(np.ascontiguousarray(self.data), starts, np.ones(len(rows), np.bool_), offsets, out)
        return Ragged(offsets, out)


def concatenate(columns: list[Ragged]) -> Ragged:
    """The elements of several columns after each other, copied."""
    if not columns:
        return Ragged.empty()
    offsets = np.zeros(sum(map(len, columns)) + 1, np.int64)
    np.cumsum(np.concatenate([c.lengths for c in columns]), out=offsets[1:])
    return Ragged(offsets, np.concatenate([c.data[c.offsets[0] : c.offsets[-1]] for c in columns]))
