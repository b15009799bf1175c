"""Fetched records as columns: no Python object for each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from native.json_events import PADDING

U8 = npt.NDArray[np.uint8]
I64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Fetched:
    """n records of one partition, offsets ascending, with holes where there are none. Their bytes lie in `data`."""

    data: U8
    offset: I64  # (n,)
    time_ms: I64  # (n,) record timestamps, −1 for none
    key_at: I64  # (n,)
    key_size: I64  # (n,) −1: no key
    value_at: I64  # (n,)
    value_size: I64  # (n,) −1: a null value

    def __len__(self) -> int:
        return len(self.offset)

    def part(self, start: int, stop: int) -> Fetched:
        """Records [start, stop), views."""
        rows = slice(start, stop)
        return Fetched(self.data, self.offset[rows], self.time_ms[rows], self.key_at[rows], self.key_size[rows],
                       self.value_at[rows], self.value_size[rows])  # fmt: skip

    def key(self, i: int) -> bytes | None:
        """Key of record i."""
        return _bytes(self.data, int(self.key_at[i]), int(self.key_size[i]))

    @classmethod
    def of(cls, records: Iterable[tuple[int, int, bytes | None, bytes | None]]) -> Fetched:
        """From (offset, time_ms, key, value) each; for old message formats and tests."""
        rows = list(records)
        offset, time_ms = [row[0] for row in rows], [row[1] for row in rows]
        keys, values = [row[2] for row in rows], [row[3] for row in rows]
        parts = [part or b"" for pair in zip(keys, values, strict=True) for part in pair]
        ends = np.cumsum([0, *map(len, parts)], dtype=np.int64)[:-1]
        return cls(
            np.frombuffer(b"".join(parts), np.uint8),
            np.array(offset, np.int64),
            np.array(time_ms, np.int64),
            ends[::2],
            _sizes(keys),
            ends[1::2],
            _sizes(values),
        )


@dataclass(frozen=True, slots=True)
class Values:
    """r byte strings in one buffer, which has PADDING bytes behind the last: parsers load whole words."""

    data: U8
    start: I64  # (r,)
    size: I64  # (r,)

    def __len__(self) -> int:
        return len(self.start)

    def __getitem__(self, i: int) -> bytes:
        return _bytes(self.data, int(self.start[i]), int(self.size[i])) or b""

    @classmethod
    def of(cls, values: Sequence[bytes]) -> Values:
        """From Python byte strings."""
        size = np.fromiter(map(len, values), np.int64, len(values))
        return cls(np.frombuffer(b"".join([*values, bytes(PADDING)]), np.uint8), np.cumsum(size) - size, size)

    @classmethod
    def joined(cls, chunks: Sequence[Fetched]) -> Values:
        """The values of the records of all chunks that have one, in order."""
        buffers, starts, sizes, at = [], [], [], 0
        for chunk in chunks:
            some = chunk.value_size >= 0
            start, size = chunk.value_at[some], chunk.value_size[some]
            if not len(start):
                continue
            first, last = int(start[0]), int(start[-1] + size[-1])
            buffers.append(chunk.data[first:last])
            starts.append(start + (at - first))
            sizes.append(size)
            at += last - first
        none = np.zeros(0, np.int64)
        data = np.concatenate([*buffers, np.zeros(PADDING, np.uint8)])
        return cls(data, np.concatenate([none, *starts]), np.concatenate([none, *sizes]))


def _bytes(data: U8, at: int, size: int) -> bytes | None:
    return None if size < 0 else data[at : at + size].tobytes()


def _sizes(parts: Sequence[bytes | None]) -> I64:
    return np.array([-1 if part is None else len(part) for part in parts], np.int64)
