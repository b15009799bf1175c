"""A mirror's rows in a file, so that a restarted service answers at once and catches up by the change feed.

In it: item rows as the store delivered them, their statistics and ids, the dense parameters, and the feed's cursors.
Nothing of any user.

    b"TOWMIR01" · part (header, MessagePack) · part (dense, float32) · part (rows) … · part (nothing)
    part: length (u64) · bytes, padded to 8 · xxh3-64 of number and bytes (u64)

Rows are copied while the mirror goes on, a few thousand at a time, each lot under the mirror's lock. So the file is of
no one moment: a row may be newer than the cursors, never older, and whole in any case. That is enough, as the feed
names again all that changed since the cursors, and taking a row in twice is harmless. What was deleted since, the feed
names too; a feed that does not reach back makes the mirror scan the table anew.

A file is written under another name and renamed when it is whole. One that is damaged anywhere is refused before any of
it is served.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from embedding_store.contract import F32, I64, U32, U64, Bool, Cursor
from embedding_store.errors import MirrorFileRefused
from native.ragged import Ragged

U8 = npt.NDArray[np.uint8]
F64 = npt.NDArray[np.float64]

_MAGIC = b"TOWMIR01"
_WORD = struct.Struct("<Q")
_LEFT_S = 600.0
LOT = 4096
"""Rows copied at once: a megabyte at 64 dimensions, less than a millisecond without refreshes."""


class Standing(msgspec.Struct, frozen=True):
    """What rows of a mirror are of."""

    dim: int
    cursors: dict[str, tuple[str, tuple[str, ...]]]  # by table: run and positions
    clocks: tuple[int, ...]  # of the item table's shards
    event_time_ms: int
    produced_ms: int

    def cursor(self, table: str) -> Cursor:
        """Where the feed goes on."""
        return Cursor(*self.cursors[table])


class Header(msgspec.Struct, frozen=True):
    """What a file says of itself."""

    document: bytes  # the published model
    generation: int  # of the store
    as_of_ms: int  # wall clock: all that was in the feed then is in the rows
    slots: int  # the most rows there can be
    standing: Standing


@dataclass(frozen=True, slots=True)
class Lot:
    """Some rows; row i is key i's."""

    keys: U64  # (n,)
    vectors: F32  # (n, dim) as delivered, of the shard clocks `delivered_at`
    delivered_at: I64  # (n,)
    log_popularity: F64  # (n,)
    clock: I64  # (n,)
    count: I64  # (n,)
    updated_ms: I64  # (n,)
    checks: U32  # (n,)
    named: Bool  # (n,)
    ids: Ragged  # n


_COLUMNS = (
    ("keys", np.dtype("<u8")), ("delivered_at", np.dtype("<i8")), ("log_popularity", np.dtype("<f8")),
    ("clock", np.dtype("<i8")), ("count", np.dtype("<i8")), ("updated_ms", np.dtype("<i8")),
    ("checks", np.dtype("<u4")), ("named", np.dtype("?")),
)  # fmt: skip


@dataclass
class MirrorFile:
    """A file that was found whole in its head; `lots` reads the rest."""

    path: Path
    header: Header
    dense: F32
    _parts: _Parts = field(repr=False)

    def lots(self) -> Iterator[Lot]:
        """All rows, in lots; a key may be in two of them, of which the later holds. Raises MirrorFileRefused."""
        for part in self._parts:
            if not len(part):
                return
            yield _lot(part, self.header.standing.dim)
        raise MirrorFileRefused(f"{self.path} is cut off")


def write(path: Path, header: Header, dense: F32, lots: Iterator[Lot]) -> int:
    """Write all of it, then rename: bytes written. What `lots` raises leaves the file there was."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for left in path.parent.glob(f"{path.name}.*"):
        if time.time() - left.stat().st_mtime > _LEFT_S:  # by one that was killed; a younger one may be at work
            left.unlink(missing_ok=True)
    half = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        with half.open("wb") as out:
            out.write(_MAGIC)
            parts = _Out(out)
            parts.add(msgspec.msgpack.encode(header))
            parts.add(dense.astype("<f4", copy=False))
            for lot in lots:
                if len(lot.keys):
                    parts.add(*_buffers(lot))
            parts.add()
            out.flush()
            os.fsync(out.fileno())
            size = out.tell()
        half.rename(path)
    finally:
        half.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return size


def read(path: Path) -> MirrorFile | None:
    """The file; None where there is none. Raises MirrorFileRefused."""
    try:
        data = np.asarray(np.memmap(path, np.uint8, mode="r"))  # not as a memmap, whose slices cost ten times as much
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:  # ValueError: it is empty
        raise MirrorFileRefused(f"{path} can't be read: {error}") from error
    if data[: len(_MAGIC)].tobytes() != _MAGIC:
        raise MirrorFileRefused(f"{path} is no mirror's file of this version")
    parts = _Parts(path, data)
    head, dense = next(parts), next(parts)
    try:
        header = msgspec.msgpack.decode(head.data, type=Header)
    except msgspec.DecodeError as error:
        raise MirrorFileRefused(f"{path} is of another version: {error}") from error
    return MirrorFile(path, header, dense.view("<f4").astype(np.float32), parts)


class _Out:
    def __init__(self, out: BinaryIO) -> None:
        self._out, self._number = out, 0

    def add(self, *buffers: bytes | npt.NDArray[Any]) -> None:
        views = [np.ascontiguousarray(b).data.cast("B") if not isinstance(b, bytes) else b for b in buffers]
        digest = xxhash.xxh3_64(_WORD.pack(self._number))
        length = sum(map(len, views))
        self._out.write(_WORD.pack(length))
        for view in (*views, b"\0" * (-length % 8)):
            digest.update(view)
            self._out.write(view)
        self._out.write(_WORD.pack(digest.intdigest()))
        self._number += 1


class _Parts(Iterator[U8]):
    """The bytes of one part after the other, each checked."""

    def __init__(self, path: Path, data: U8) -> None:
        self._path, self._data, self._at, self._number = path, data, len(_MAGIC), 0

    def __next__(self) -> U8:
        if self._at + 16 > len(self._data):
            raise MirrorFileRefused(f"{self._path} is cut off after {len(self._data)} bytes")
        (length,) = _WORD.unpack_from(self._data.data, self._at)
        start = self._at + 8
        stop = start + length + -length % 8
        if stop + 8 > len(self._data):
            raise MirrorFileRefused(f"{self._path} is cut off, or damaged at byte {self._at}")
        digest = xxhash.xxh3_64(_WORD.pack(self._number))
        digest.update(self._data[start:stop].data)
        if digest.intdigest() != _WORD.unpack_from(self._data.data, stop)[0]:
            raise MirrorFileRefused(f"{self._path} is damaged between bytes {start} and {stop}")
        self._at, self._number = stop + 8, self._number + 1
        return self._data[start : start + length]


def _buffers(lot: Lot) -> list[bytes | npt.NDArray[Any]]:
    columns = [getattr(lot, name).astype(dtype, copy=False) for name, dtype in _COLUMNS]
    lengths = lot.ids.lengths.astype("<u4")
    return [_WORD.pack(len(lot.keys)), lot.vectors.astype("<f4", copy=False), *columns, lengths, lot.ids.data]


def _lot(part: U8, dim: int) -> Lot:
    """Of a part whose checksum holds: what is wrong with it was wrong when it was written."""
    (n,) = _WORD.unpack_from(part.data)
    at = 8

    def taken(dtype: np.dtype[Any], count: int) -> npt.NDArray[Any]:
        nonlocal at
        start, at = at, at + dtype.itemsize * count
        return part[start:at].view(dtype)

    vectors = taken(np.dtype("<f4"), n * dim).reshape(n, dim)
    columns = {name: taken(dtype, n) for name, dtype in _COLUMNS}
    offsets = np.zeros(n + 1, np.int64)
    np.cumsum(taken(np.dtype("<u4"), n), out=offsets[1:])
    return Lot(vectors=vectors, ids=Ragged(offsets, part[at:]), **columns)


def now_ms() -> int:
    """Wall clock, ms since the epoch."""
    return time.time_ns() // 1_000_000
