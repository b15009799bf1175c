"""A mirror in shared memory: one process keeps it, any number of others read it.

What a reader sees between taking and releasing `SharedMirror.lock` is one state of the whole mirror as it was after one
refresh: rows, ids, popularity, clock and dense parameters, never a part of a row, and never rows of one dense version
with the tower of another. Nothing is retried and nobody waits: see `embedding_store.shared_board`.

An `ItemMirror` is what the writer refreshes, in memory of its own; `Publisher.publish` carries over to the side that is
not read what changed since that side was last written, and turns. A writer that is killed leaves the side that is read
as it was.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np

from embedding_store.contract import F32, I64, U64, Bool
from embedding_store.followed_features import FollowedFeatures
from embedding_store.item_filter import ItemFilter
from embedding_store.mirror import Held, ItemMirror
from embedding_store.mirror_delta import Delta
from embedding_store.mirror_reads import U8, MirrorReads
from embedding_store.model import ModelSettings
from embedding_store.shared_board import BOOKS, Area, Board
from embedding_store.shared_memory import Bytes
from embedding_store.towers import DenseParameters, Towers
from embedding_store.turn_lock import TurnLock
from native import key_index
from native.coarse import encode, tiles

log = logging.getLogger(__name__)

_POLL_S = 0.0001
_HUNG_S = 10.0
"""A pin lasts as long as a pass over the items; who holds one for so long is killed, or nobody would get updates."""
_GRACE_S = 5.0  # readers turn to a new book within a fraction of it
_IDS_FREE = 0.25  # of their bytes, left for ids to come
_HEAD = 128  # bytes
_CAPACITY, _PLACES, _IDS, _HIGH, _SIZE, _CLOCK, _EVENT_TIME, _PRODUCED, _DENSE, _USED = range(10)  # int64 of the head
_OFFSET = 15  # float64


@dataclass(frozen=True, slots=True)
class Shape:
    """What the arrays of a side are as long as."""

    capacity: int
    places: int
    ids: int  # bytes

    @classmethod
    def of(cls, area: Bytes) -> Shape:
        """As the head of a side says."""
        head = area[:_HEAD].view(np.int64)
        return cls(int(head[_CAPACITY]), int(head[_PLACES]), int(head[_IDS]))


class Side:
    """The arrays of one side, over an area."""

    def __init__(self, area: Bytes, model: ModelSettings, shape: Shape) -> None:
        raw_are_outputs = not model.dense_layers and model.similarity == "dot"
        self._area, self._at = area, _HEAD
        n = shape.capacity
        self.ints: I64 = area[:_HEAD].view(np.int64)
        self.floats = area[:_HEAD].view(np.float64)
        self.places: I64 = self._array(np.int64, shape.places)
        self.keys: U64 = self._array(np.uint64, n)
        self.bias: F32 = self._array(np.float32, n)
        self.columns: dict[str, I64] = {name: self._array(np.int64, n) for name in ("clock", "count", "updated_ms")}
        self.id_starts: I64 = self._array(np.int64, n)
        self.id_lengths: I64 = self._array(np.int64, n)
        self.vectors: F32 = self._array(np.float32, n, model.dim)
        self.outputs: F32 = self.vectors if raw_are_outputs else self._array(np.float32, n, model.output_dim)
        self.codes: U8 = self._array(np.uint8, *tiles(n, model.output_dim))
        self.scales: F32 = self._array(np.float32, n)
        self.dense: F32 = self._array(np.float32, DenseParameters(model).size)
        self.ids: Bytes = self._array(np.uint8, shape.ids)

    def _array(self, dtype: type, *shape: int) -> Any:
        length = int(np.prod(shape)) * np.dtype(dtype).itemsize
        start, self._at = self._at, self._at + -(-length // 64) * 64
        return self._area[start : start + length].view(dtype).reshape(shape)

    @staticmethod
    def length(model: ModelSettings, shape: Shape) -> int:
        """Bytes of an area for it."""
        n = shape.capacity
        raw_are_outputs = not model.dense_layers and model.similarity == "dot"
        codes = int(np.prod(tiles(n, model.output_dim)))
        floats = n * (2 + model.dim + (0 if raw_are_outputs else model.output_dim)) + DenseParameters(model).size
        return (
            _HEAD + 8 * (shape.places + 6 * n) + 4 * floats + codes + shape.ids + 64 * 14
        )  # each array begins at a line

    def fits(self, held: Held, ids: int) -> bool:
        """Whether the mirror's arrays are as long as these, and there is room for so many bytes of ids more."""
        index = held.index
        if (index.capacity, len(index.table)) != (len(self.keys), len(self.places)):
            return False
        return int(self.ints[_USED]) + ids <= len(self.ids)

    def copy_all(self, held: Held) -> None:
        """Everything, into an area of zeros."""
        n = held.index.high_water
        self.places[:] = held.index.table
        self.keys[:n] = held.index.slot_keys
        self.bias[:n], self.vectors[:n], self.dense[:] = held.bias[:n], held.vectors[:n], held.dense
        self.codes[:], self.scales[:n] = held.codes, held.scales[:n]
        for name, column in self.columns.items():
            column[:n] = held.columns[name][:n]
        if self.outputs is not self.vectors:
            self.outputs[:n] = held.outputs[:n]
        self.add_ids(np.arange(n), held.ids[:n])

    def copy(self, held: Held, owed: Delta, rebuilt: bool) -> None:
        """What is owed, but ids; rebuilt: the mirror's table is another than the one this is a copy of."""
        n = held.index.high_water
        if rebuilt:
            self.places[:] = held.index.table
            self.keys[:n] = held.index.slot_keys
        else:
            for keys, slots in owed.moves:
                if slots is None:
                    key_index.remove(self.places, self.keys, keys)
                else:
                    key_index.insert(self.places, self.keys, keys, slots)
        rows = owed.changed()
        for name, column in self.columns.items():
            column[rows] = held.columns[name][rows]
        which = slice(0, n) if owed.popularity else rows
        self.bias[which] = held.bias[which]
        which = slice(0, n) if owed.vectors else rows
        self.vectors[which] = held.vectors[which]
        if self.outputs is not self.vectors:
            self.outputs[which] = held.outputs[which]
        if owed.vectors:
            self.codes[:], self.scales[:n] = held.codes, held.scales[:n]
        else:
            encode(self.outputs, rows, self.codes, self.scales)
        if owed.towers:
            self.dense[:] = held.dense

    def add_ids(self, slots: I64, ids: Sequence[bytes]) -> None:
        """Of slots (n,), behind those there are: no reader of the other side sees these bytes."""
        if not len(slots):
            return
        lengths = np.fromiter(map(len, ids), np.int64, len(ids))
        used = int(self.ints[_USED])
        ends = used + np.cumsum(lengths)
        self.id_starts[slots], self.id_lengths[slots] = ends - lengths, lengths
        self.ids[used : ends[-1]] = np.frombuffer(b"".join(ids), np.uint8)
        self.ints[_USED] = ends[-1]

    def write_head(self, held: Held, dense_version: int) -> None:
        """What has no array."""
        self.ints[[_CAPACITY, _PLACES, _IDS]] = len(self.keys), len(self.places), len(self.ids)
        self.ints[[_HIGH, _SIZE, _CLOCK]] = held.index.high_water, len(held.index), held.clock
        self.ints[[_EVENT_TIME, _PRODUCED, _DENSE]] = held.event_time_ms, held.produced_ms, dense_version
        self.floats[_OFFSET] = held.offset


class Publisher:
    """The writer's: a book of one mirror. For the thread that refreshes it."""

    def __init__(self, board: Board, mirror: ItemMirror, document: bytes) -> None:
        """document: the published model, for the readers."""
        self._board, self._mirror, self._model, self._document = board, mirror, mirror.model, document
        self._book = 0
        self._owed = [Delta(everything=True), Delta(everything=True)]
        self._sides: list[Side | None] = [None, None]
        self._tables: list[I64 | None] = [None, None]  # of the mirror, when each side was written
        self._dense_version = 0
        self._retire_s: float | None = None  # time.monotonic() from when on older books are given back

    def publish(self) -> None:
        """What the mirror holds now is what is read from now on; returns then."""
        board = self._board
        if not self._book:
            self._retire(board.newest() + 1 - BOOKS)  # whose words the new one takes
            self._book = board.begin(self._document)
            self._retire_s = time.monotonic() + _GRACE_S
        delta = self._mirror.take_delta()
        for owed in self._owed:
            owed.add(delta)
        self._dense_version += delta.towers or delta.everything
        turn = board.turn(self._book) + 1
        self._write(turn & 1)
        board.turn_to(self._book, turn)
        self.tidy()

    def tidy(self) -> None:
        """Give back what was read before, once readers have had time to turn to this."""
        if self._retire_s is not None and time.monotonic() >= self._retire_s:
            self._retire(self._book - 1)
            self._retire_s = None

    def _write(self, number: int) -> None:
        """Bring a side up to the mirror: what it is owed, or all where the mirror's arrays have other lengths now."""
        self._await_unpinned(self._book, number)
        held = self._mirror.held()
        owed, self._owed[number] = self._owed[number], Delta()
        side = None if owed.everything else self._sides[number]
        renamed = owed.renamed()
        ids = [held.ids[slot] for slot in renamed.tolist()] if side is not None else []
        if side is None or not side.fits(held, sum(map(len, ids))):
            side = self._laid_anew(number, held)
            side.copy_all(held)
        else:
            side.copy(held, owed, self._tables[number] is not held.index.table)
            side.add_ids(renamed, ids)
        self._tables[number] = held.index.table
        side.write_head(held, self._dense_version)

    def _laid_anew(self, number: int, held: Held) -> Side:
        used = sum(map(len, held.ids))
        shape = Shape(held.index.capacity, len(held.index.table), used + int(used * _IDS_FREE) + 4096)
        area = self._board.allot(Side.length(self._model, shape))
        self._board.lay(self._book, number, area)
        side = Side(self._board.memory.part(area.offset, area.length, writable=True), self._model, shape)
        self._sides[number] = side
        return side

    def _await_unpinned(self, book: int, side: int) -> None:
        began_s = time.monotonic()
        while pids := self._board.pinned(book, side):
            if time.monotonic() - began_s > _HUNG_S:
                for pid in filter(None, pids):
                    log.error("process %d has not let go of the mirror for %.0f s: it is killed", pid, _HUNG_S)
                    with contextlib.suppress(ProcessLookupError):  # it has just ended
                        os.kill(pid, signal.SIGKILL)  # its parent takes its pins back
                began_s = time.monotonic()
            time.sleep(_POLL_S)

    def _retire(self, newest: int) -> None:
        """Give back all books up to `newest`."""
        for book in self._board.older(newest + 1):
            self._board.forbid(book)
            for side in (0, 1):
                self._await_unpinned(book, side)
            self._board.clear(book)


class Sides:
    """One book as one process has it mapped: once, for all its threads."""

    def __init__(self, board: Board, book: int, model: ModelSettings, reader: int) -> None:
        """reader: this process among all that read, below `MOST_READERS`."""
        self.board, self.book, self.model, self.reader = board, book, model, reader
        self._lock = threading.Lock()
        self._mapped: list[tuple[Area, Side] | None] = [None, None]

    def of(self, turn: int) -> Side:
        """The side of a turn that is pinned."""
        area = self.board.side(self.book, turn)
        mapped = self._mapped[turn & 1]
        if mapped is not None and mapped[0] == area:
            return mapped[1]
        with self._lock:
            part = self.board.memory.part(area.offset, area.length, writable=False)
            side = Side(part, self.model, Shape.of(part))
            self._mapped[turn & 1] = area, side
        return side


class SharedMirror(MirrorReads, threading.local):
    """A reader's mirror. Its attributes are each thread's own: they are of the side that the thread has pinned."""

    def __init__(self, sides: Sides, followed: FollowedFeatures | None = None) -> None:
        """Called again by Python for each thread that comes along. followed: of a model that declares features."""
        super().__init__(sides.model)
        self.features = None if followed is None else followed.mirror
        self._sides = sides
        self._board, self._book, self._reader = sides.board, sides.book, sides.reader
        self._parameters = DenseParameters(sides.model)
        self._depth = 0
        self._turn = self._seen = -1
        self._dense_version = -1
        self._side: Side
        self.lock = _Pin(self, None if followed is None else followed.lock)

    def take(self) -> None:
        """Pin a side; `lock` does. Raises BookGone."""
        if not self._depth:
            self._turn = self._board.pin(self._book, self._reader)
            if self._turn != self._seen:
                self._turn_to(self._turn)
        self._depth += 1

    def let_go(self) -> None:
        """Once for each `take`."""
        self._depth -= 1
        if not self._depth:
            self._board.unpin(self._book, self._reader, self._turn)

    def _turn_to(self, turn: int) -> None:
        side = self._side = self._sides.of(turn)
        self._index = _Table(side)
        self._vectors, self._outputs, self._bias, self._columns = side.vectors, side.outputs, side.bias, side.columns
        self._codes, self._scales = side.codes, side.scales
        self._ids = _Ids(side)
        self._offset = float(side.floats[_OFFSET])
        if (version := int(side.ints[_DENSE])) != self._dense_version:
            self._towers: Towers = self._parameters.to_towers(side.dense.copy())
            self._dense_version = version
        self._seen = turn

    def passing(self, wanted: ItemFilter) -> Bool:
        """As `MirrorReads` says. Made anew for each call: a pass over the values of all items."""
        features = self.features
        return super().passing(wanted) if features is None else features.passing(wanted, self._index.slot_keys)

    @property
    def clock(self) -> int:
        """As `MirrorReads` says."""
        with self.lock:
            return int(self._side.ints[_CLOCK])

    @property
    def event_time_ms(self) -> int:
        """As `MirrorReads` says."""
        with self.lock:
            return int(self._side.ints[_EVENT_TIME])

    @property
    def produced_ms(self) -> int:
        """As `MirrorReads` says."""
        with self.lock:
            return int(self._side.ints[_PRODUCED])

    @property
    def size(self) -> int:
        """Items held."""
        with self.lock:
            return len(self._index)

    @property
    def nbytes(self) -> int:
        """Memory in use of all that is shared: both sides, whoever reads them."""
        return self._board.memory.nbytes


class _Pin:
    """`SharedMirror.lock`: never has to wait, but for a refresh of this process's own rows of features, and for that
    before a side is pinned.
    """

    def __init__(self, mirror: SharedMirror, features: TurnLock | None) -> None:
        self._mirror, self._features = mirror, features

    def acquire(self, blocking: bool = True) -> bool:
        features = self._features
        if features is not None and not features.acquire(blocking):
            return False
        try:
            self._mirror.take()
        except BaseException:
            if features is not None:
                features.release()
            raise
        return True

    def release(self) -> None:
        self._mirror.let_go()
        if self._features is not None:
            self._features.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class _Table:
    """Where keys are in a side, as it was when it was pinned."""

    def __init__(self, side: Side) -> None:
        self._places, self._keys = side.places, side.keys
        self.high_water, self._size = int(side.ints[_HIGH]), int(side.ints[_SIZE])

    def find(self, keys: U64) -> I64:
        out = np.empty(len(keys), np.int64)
        key_index.find(self._places, self._keys, keys, out)
        return out

    @property
    def slot_keys(self) -> U64:
        return self._keys[: self.high_water]

    def __len__(self) -> int:
        return self._size


class _Ids:
    """Ids by slot."""

    def __init__(self, side: Side) -> None:
        self._starts, self._lengths, self._bytes = side.id_starts, side.id_lengths, side.ids.data

    def __getitem__(self, slot: int) -> bytes:
        start = int(self._starts[slot])
        return bytes(self._bytes[start : start + int(self._lengths[slot])])
