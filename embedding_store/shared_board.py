"""The few words through which processes agree on what of the shared memory is being read.

A *book* is one mirror, of one published model, as one writer keeps it. It has two sides, each a whole copy; an even or
odd `turn` says which one is read. Readers pin a side while they read it (`native.atomics.pin`), each process in words
of its own, so that the pins of one that was killed can be taken back. The writer changes only the side that is not
read, after its pins were 0. So whoever holds a pin sees one state of everything, and neither waits for the other.

Books are numbered; a book's words are used again by the fourth after it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from embedding_store.contract import I64
from embedding_store.errors import StoreError
from embedding_store.shared_memory import PAGE, SharedMemory, pages
from native import atomics

MOST_READERS = 64
BOOKS = 4
_BOOK, _NEXT = 0, 1  # words: number of the newest book that may be read; where nothing lies yet
_FIRST, _EACH = 8, 8  # the books' words
_NUMBER, _TURN, _SIDES, _DOCUMENT = 0, 1, 2, 6  # of these: number, turn, two (offset, length), (offset, length)
_PINS = _FIRST + BOOKS * _EACH  # of each reader: two for each book, a cache line in all
_PIDS = _PINS + MOST_READERS * BOOKS * 2
_WORDS = _PIDS + MOST_READERS
BYTES = pages(8 * _WORDS)
"""Of the board, at the beginning of the shared memory."""


class BookGone(StoreError):
    """Another model's mirror has taken its place for long."""


@dataclass(frozen=True, slots=True)
class Area:
    """A part of the shared memory; length 0: none."""

    offset: int
    length: int


class Board:
    """The words of all processes. Every call is safe from any thread of any of them unless it says otherwise."""

    def __init__(self, memory: SharedMemory, reserved: int = BYTES) -> None:
        """reserved: bytes at the beginning of the memory that hold this and whatever else the caller keeps there."""
        self.memory = memory
        self._words: I64 = memory.part(0, BYTES, writable=True).view(np.int64)
        if not atomics.load(self._words, _NEXT):
            atomics.store(self._words, _NEXT, pages(reserved))

    def newest(self) -> int:
        """Number of the newest book that may be read; 0: none yet."""
        return atomics.load(self._words, _BOOK)

    def document(self, book: int) -> bytes:
        """The model it is of. Raises BookGone."""
        at = self._at(book) + _DOCUMENT
        area = Area(atomics.load(self._words, at), atomics.load(self._words, at + 1))
        read = self.memory.part(area.offset, area.length, writable=False).tobytes() if area.length else b""
        if not self.holds(book):
            raise BookGone(f"book {book} of the shared mirror is gone")
        return read

    def holds(self, book: int) -> bool:
        """Whether its words are still its own. With one of its sides pinned: as long as that is."""
        return atomics.load(self._words, self._at(book) + _NUMBER) == book

    # readers

    def pin(self, book: int, reader: int) -> int:
        """Hold the side that is read: the turn. Raises BookGone."""
        pins = self._pins(reader, book)
        turn = atomics.pin(self._words, self._at(book) + _TURN, pins)
        if not self.holds(book):
            atomics.unpin(self._words, pins, turn)
            raise BookGone(f"book {book} of the shared mirror is gone")
        return turn

    def unpin(self, book: int, reader: int, turn: int) -> None:
        """Let go of it."""
        atomics.unpin(self._words, self._pins(reader, book), turn)

    def side(self, book: int, turn: int) -> Area:
        """Where the side of a turn lies."""
        at = self._at(book) + _SIDES + 2 * (turn & 1)
        return Area(int(self._words[at]), int(self._words[at + 1]))

    # the readers' parent

    def name(self, reader: int, pid: int) -> None:
        """Who the reader is."""
        atomics.store(self._words, _PIDS + reader, pid)

    def settle(self, reader: int) -> None:
        """It has ended: what it held is let go."""
        self.name(reader, 0)
        for at in range(self._pins(reader, 0), self._pins(reader, 0) + 2 * BOOKS):
            atomics.store(self._words, at, 0)

    # the writer

    def begin(self, document: bytes) -> int:
        """A new book, not to be read yet: its number. Of the one whose words it takes nothing may be left."""
        newest = self.newest()
        book = newest + 1
        at = self._at(book)
        if book in self.unread():  # a writer died before it was whole
            self.forbid(book)
            self.clear(book)
        if atomics.load(self._words, at + _NUMBER):
            raise AssertionError(f"book {book - BOOKS} was not cleared")
        area = self.allot(len(document))
        self.memory.part(area.offset, area.length, writable=True)[: len(document)] = np.frombuffer(document, np.uint8)
        for word, value in ((_TURN, 0), (_DOCUMENT, area.offset), (_DOCUMENT + 1, len(document)), (_NUMBER, book)):
            atomics.store(self._words, at + word, value)
        return book

    def turn(self, book: int) -> int:
        """As it is now."""
        return atomics.load(self._words, self._at(book) + _TURN)

    def turn_to(self, book: int, turn: int) -> None:
        """From now on the other side is read; the first time the book may be."""
        atomics.store(self._words, self._at(book) + _TURN, turn)
        if self.newest() < book:
            atomics.store(self._words, _BOOK, book)

    def pinned(self, book: int, side: int) -> list[int]:
        """Pids of who holds the side."""
        held = [r for r in range(MOST_READERS) if atomics.load(self._words, self._pins(r, book) + side) > 0]
        return [atomics.load(self._words, _PIDS + reader) for reader in held]

    def allot(self, length: int) -> Area:
        """Memory for a side or a document: zeros."""
        size = pages(max(length, PAGE))
        return Area(atomics.add(self._words, _NEXT, size), size)

    def lay(self, book: int, side: int, area: Area) -> None:
        """A side that nobody reads lies there from now on; what it had is given back."""
        at = self._at(book) + _SIDES + 2 * side
        old = Area(atomics.load(self._words, at), atomics.load(self._words, at + 1))
        atomics.store(self._words, at + 1, 0)
        if old.length:
            self.memory.give_back(old.offset, old.length)
        atomics.store(self._words, at, area.offset)
        atomics.store(self._words, at + 1, area.length)

    def older(self, book: int) -> list[int]:
        """Books before it that are still open."""
        return sorted(number for number in self._numbers() if 0 < number < book)

    def unread(self) -> list[int]:
        """Books that were begun and never read."""
        return [number for number in self._numbers() if number > self.newest()]

    def _numbers(self) -> list[int]:
        return [atomics.load(self._words, self._at(slot) + _NUMBER) for slot in range(BOOKS)]

    def forbid(self, book: int) -> None:
        """Nobody can pin it any more."""
        atomics.store(self._words, self._at(book) + _NUMBER, 0)

    def clear(self, book: int) -> None:
        """Give back all of a forbidden book. Once nobody has it pinned."""
        for side in (0, 1):
            self.lay(book, side, Area(0, 0))
        at = self._at(book) + _DOCUMENT
        length = atomics.load(self._words, at + 1)
        if length:
            self.memory.give_back(atomics.load(self._words, at), pages(length))
            atomics.store(self._words, at + 1, 0)

    def _at(self, book: int) -> int:
        return _FIRST + (book % BOOKS) * _EACH

    def _pins(self, reader: int, book: int) -> int:
        return _PINS + (reader * BOOKS + book % BOOKS) * 2
