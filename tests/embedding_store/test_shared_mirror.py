"""A mirror in shared memory: what readers see, also in other processes, while a writer goes on."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest

from embedding_store.memory import MemoryStore
from embedding_store.mirror import ItemMirror
from embedding_store.model import ModelSettings
from embedding_store.ranking import Ranker
from embedding_store.regularization import L2, NoRegularization
from embedding_store.shared_board import BOOKS, Board, BookGone
from embedding_store.shared_memory import SharedMemory
from embedding_store.shared_mirror import Publisher, SharedMirror, Sides
from embedding_store.spec import Sgd
from tests.flushes import begin, flush_of

PLAIN = ModelSettings(dim=4, shards=2, learned_gates=False, regularization=NoRegularization())
MODELS = {
    "raw": PLAIN,
    "decays": ModelSettings(
        dim=4, shards=2, optimizer=Sgd(), step_events=10, initial_std=0.5, regularization=L2(l2=0.3)
    ),
    "dense": ModelSettings(dim=4, shards=2, dense_layers=(6, 3), step_events=10, regularization=L2(l2=0.1)),
}


def opened(model: ModelSettings) -> MemoryStore:
    store = MemoryStore()
    for spec in model.tables().values():
        begin(store, spec)
    return store


def reading(board: Board, model: ModelSettings, reader: int = 0) -> SharedMirror:
    return SharedMirror(Sides(board, board.newest(), model, reader))


def same(shared: SharedMirror, mirror: ItemMirror, keys: np.ndarray) -> None:
    one, other = shared.items(keys), mirror.items(keys)
    for name in ("vectors", "found", "clock", "count", "updated_ms"):
        assert np.array_equal(getattr(one, name), getattr(other, name)), name
    assert np.array_equal(shared.raw_vectors(keys)[0][one.found], mirror.raw_vectors(keys)[0][one.found])
    assert (shared.clock, shared.size, shared.event_time_ms) == (mirror.clock, mirror.size, mirror.event_time_ms)
    with shared.lock, mirror.lock:
        assert np.array_equal(shared.slots(keys), mirror.slots(keys))
        for held, told in zip(shared.columns(), mirror.columns(), strict=True):
            assert np.array_equal(held, told)
        slots = mirror.slots(keys[one.found])
        assert shared.describe(slots)[1] == mirror.describe(slots)[1]
        assert np.array_equal(shared.gates.flat(), mirror.gates.flat())
    nobody = np.zeros(0, np.uint64)
    user = np.ones(mirror.model.output_dim, np.float32)
    best = [Ranker(MemoryStore(), mirror.model, m).recommend(user, exclude=nobody, k=9) for m in (shared, mirror)]
    assert np.array_equal(best[0].keys, best[1].keys)
    assert np.array_equal(best[0].scores, best[1].scores)


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_readers_see_what_the_mirror_holds_after_any_feed(model: ModelSettings) -> None:
    """Growth over several capacities, deletions, ids that change hands, decay, dense versions, a rescan."""
    store, rng = opened(model), np.random.default_rng(0)
    mirror, board = ItemMirror(store, model), Board(SharedMemory())
    mirror.refresh()
    publisher = Publisher(board, mirror, model.document())
    publisher.publish()
    shared = reading(board, model)
    assert board.document(board.newest()) == model.document()
    for at in range(60):
        keys = rng.choice(200 + 80 * at, 70, replace=False)
        forget = rng.choice(200 + 80 * at, 9, replace=False).tolist() if at % 3 == 2 else []
        identities = [(7 + key, f"id {key} {'x' * (key % 50)}".encode()) for key in keys.tolist()]
        flush = flush_of(
            keys.tolist(),
            at,
            at + 1,
            gradients=rng.normal(size=(len(keys), 4)),
            events=30,
            forget=forget,
            counts=np.ones(len(keys), np.int64),
            positives=rng.integers(0, 3, len(keys)),
            identities=identities,
            generation=store.generation(),
        )
        store.apply("item", flush)
        if model.has_dense and at % 5 == 0:
            rows = int(-(-len(mirror.held().dense) // 64))
            gradients = rng.normal(size=(rows, 64))
            start = 5 * (at // 5)
            flush = flush_of(
                list(range(rows)), start, start + 5, gradients=gradients, events=30, generation=store.generation()
            )
            store.apply("dense", flush)
        if at == 40:
            store.raise_generation()
        mirror.refresh()
        publisher.publish()
        same(shared, mirror, np.arange(0, 200 + 80 * at, 3).astype(np.uint64))
    assert mirror.held().index.capacity > 1024


def test_a_reader_keeps_its_state_while_it_holds_it_and_the_writer_waits_for_it() -> None:
    store = opened(PLAIN)
    mirror, board = ItemMirror(store, PLAIN), Board(SharedMemory())
    mirror.refresh()
    publisher = Publisher(board, mirror, b"{}")
    publisher.publish()
    shared, key = reading(board, PLAIN), np.array([5], np.uint64)

    def update(at: int) -> None:
        store.apply("item", flush_of([5], at, at + 1, gradients=np.ones((1, 4))))
        mirror.refresh()
        publisher.publish()

    update(0)
    with shared.lock:
        before = shared.raw_vectors(key)[0]
        update(1)  # the other side: nobody holds it
        assert np.array_equal(shared.raw_vectors(key)[0], before)
        other = threading.Thread(target=update, args=(2,))
        other.start()
        assert board.pinned(board.newest(), board.turn(board.newest()) + 1 & 1)
        assert np.array_equal(shared.raw_vectors(key)[0], before)
        assert other.is_alive()
    other.join(10)
    assert not other.is_alive()
    assert np.array_equal(shared.raw_vectors(key)[0], mirror.raw_vectors(key)[0])


def test_other_books_are_given_back_and_say_so() -> None:
    """Each time another model is published, or another writer begins."""
    store = opened(PLAIN)
    memory = SharedMemory()
    board = Board(memory)
    mirror = ItemMirror(store, PLAIN)
    store.apply("item", flush_of(list(range(3000)), 0, 1, gradients=np.ones((3000, 4))))
    mirror.refresh()
    sizes = []
    first = None
    for n in range(3 * BOOKS):
        Publisher(board, mirror, b'{"model":%d}' % n).publish()
        shared = reading(board, PLAIN)
        assert board.document(board.newest()) == b'{"model":%d}' % n
        assert shared.items(np.arange(4, dtype=np.uint64)).found.all()
        first = first or shared
        sizes.append(memory.nbytes)
    with pytest.raises(BookGone):
        first.items(np.arange(4, dtype=np.uint64))
    assert max(sizes[BOOKS:]) <= 1.1 * sizes[BOOKS - 1]


def _reads(board: Board, reader: int, told: Connection) -> None:
    """Until told to stop: passes over all rows; every row's numbers must be equal, and all rows of one refresh."""
    shared = reading(board, EQUAL, reader)
    states = torn = 0
    last = -1.0
    while not told.poll():
        with shared.lock:
            vectors, popularity, _ = shared.columns()
            held = vectors[np.isfinite(popularity)].copy()  # (n, dim)
            again = shared.items(shared.spread(1000)).vectors
        torn += len(np.unique(held)) > 1 or len(np.unique(again)) > 1
        if len(held):
            states += held[0, 0] != last
            last = float(held[0, 0])
    told.recv()
    told.send((states, torn))


EQUAL = ModelSettings(
    dim=64, shards=2, learned_gates=False, regularization=NoRegularization(), optimizer=Sgd(learning_rate=1.0)
)
"""Rows of one value; see `Equal`."""


class Equal(ItemMirror):
    """A mirror whose rows all hold the number of the refresh that they are of, in each place, and grow in number."""

    def grow(self, items: int, value: float) -> None:
        keys = np.arange(items, dtype=np.uint64)
        with self.lock:
            slots = self._placed(keys)
            self._vectors[slots] = value
            self._bias[slots] = 0.0


def test_no_row_is_ever_torn_while_the_table_grows_under_scans() -> None:
    """Two processes scan all the time; the writer writes all rows, grows through several capacities."""
    board = Board(SharedMemory())
    mirror = Equal(opened(EQUAL), EQUAL)
    publisher = Publisher(board, mirror, EQUAL.document())
    mirror.grow(100, 1.0)
    publisher.publish()
    context = multiprocessing.get_context("fork")
    pipes = [context.Pipe() for _ in range(2)]
    readers = [context.Process(target=_reads, args=(board, n, theirs)) for n, (_, theirs) in enumerate(pipes)]
    for process in readers:
        process.start()
    for n in range(2, 300):
        mirror.grow(100 + 30 * n, float(n))
        publisher.publish()
    answers: list[Any] = []
    for mine, _ in pipes:
        mine.send(None)
        answers.append(mine.recv())
    for process in readers:
        process.join(10)
    assert mirror.held().index.capacity >= 8192
    assert all(torn == 0 for _, torn in answers), answers
    assert all(states > 10 for states, _ in answers), f"hardly anything was seen: {answers}"


def test_pins_of_a_killed_reader_are_taken_back_and_a_hung_one_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    board = Board(SharedMemory())
    mirror = Equal(opened(EQUAL), EQUAL)
    publisher = Publisher(board, mirror, EQUAL.document())
    mirror.grow(100, 1.0)
    publisher.publish()
    context = multiprocessing.get_context("fork")

    def hang(told: Connection) -> None:
        with reading(board, EQUAL, 7).lock:
            told.send(None)
            signal.pause()

    def hung() -> multiprocessing.process.BaseProcess:
        mine, theirs = context.Pipe()
        process = context.Process(target=hang, args=(theirs,))
        process.start()
        board.name(7, process.pid or 0)
        mine.recv()
        return process

    killed = hung()
    assert killed.pid is not None
    os.kill(killed.pid, signal.SIGKILL)
    killed.join()
    assert board.pinned(1, 0) + board.pinned(1, 1) == [killed.pid]
    board.settle(7)
    assert board.pinned(1, 0) + board.pinned(1, 1) == []

    monkeypatch.setattr("embedding_store.shared_mirror._HUNG_S", 0.2)
    one = hung()
    reaper = threading.Thread(target=lambda: (one.join(), board.settle(7)))
    reaper.start()
    for _ in range(3):
        publisher.publish()
    reaper.join(10)
    assert one.exitcode == -signal.SIGKILL
