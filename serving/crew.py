"""The processes that serve one port: what they share, and what they tell of one another.

One writer follows the store and keeps the mirror, workers answer, their parent starts them: `serving.supervisor`.
"""

from __future__ import annotations

import numpy as np

from embedding_store import shared_board
from embedding_store.shared_board import Board
from embedding_store.shared_memory import SharedMemory, pages
from serving import freshness, metrics
from serving.numbers import Numbers, numbers

_SENTENCE = 4096  # bytes


class Crew:
    """How many there are, and how often one had to be started again."""

    CELLS = 3

    def __init__(self, cells: Numbers | None = None) -> None:
        """cells: where it is kept."""
        self._cells = numbers(self.CELLS) if cells is None else cells
        if cells is None:
            self._cells[0] = 1

    @property
    def workers(self) -> int:
        """Processes that answer."""
        return int(self._cells[0])

    @property
    def worker_restarts(self) -> int:
        """Since the parent began."""
        return int(self._cells[1])

    @property
    def writer_restarts(self) -> int:
        """Likewise."""
        return int(self._cells[2])

    def count(self, *, workers: int) -> None:
        """So many answer now."""
        self._cells[0] = workers

    def restarted(self, *, writer: bool) -> None:
        """One ended, and is started again."""
        self._cells[2 if writer else 1] += 1


class CrewMemory:
    """Memory of all of them, made by their parent: the mirror's board, and numbers."""

    def __init__(self, workers: int) -> None:
        """Raises StoreMisconfigured where the system has no such memory."""
        memory = SharedMemory()
        start = shared_board.BYTES
        counts = 8 * (Crew.CELLS + freshness.CELLS + workers * metrics.CELLS)
        length = pages(counts + _SENTENCE)
        self.board = Board(memory, reserved=start + length)
        whole = memory.part(start, length, writable=True)
        self._sentence = whole[-_SENTENCE:]
        held = whole[:counts].data.cast("B").cast("d")
        self.crew = Crew(held[: Crew.CELLS])
        self.freshness = held[Crew.CELLS : Crew.CELLS + freshness.CELLS]
        self._slabs = held[Crew.CELLS + freshness.CELLS :]
        self._workers = workers

    def metrics_of(self, worker: int) -> Numbers:
        """Where a worker counts."""
        return self._slabs[worker * metrics.CELLS : (worker + 1) * metrics.CELLS]

    def metrics_of_all(self) -> Numbers:
        """Sums over all workers, those that ended included."""
        slabs = np.asarray(self._slabs).reshape(self._workers, metrics.CELLS)
        total: Numbers = slabs.sum(axis=0).data.cast("B").cast("d")
        return total

    def say(self, sentence: str) -> None:
        """Why all of them must end, for the parent."""
        data = sentence.encode()[: _SENTENCE - 1]
        self._sentence[: len(data)] = np.frombuffer(data, np.uint8)
        self._sentence[len(data)] = 0

    def said(self) -> str:
        """What `say` was told."""
        return self._sentence.tobytes().split(b"\0")[0].decode(errors="replace")
