"""Dense parameters are read whole, kept as versions, and gone back to past deltas that are still on their way."""

import threading

import numpy as np
import pytest

from embedding_store.dense_versions import KEPT, DenseVersions, read_dense
from embedding_store.errors import BadRequest, GenerationError
from embedding_store.memory import MemoryStore
from embedding_store.model import ModelSettings
from embedding_store.towers import DenseParameters
from tests.flushes import begin, flush_of
from tests.trainer.small import SOURCE

MODEL = ModelSettings(dim=16, dense_layers=(48, 32))
PARAMETERS = DenseParameters(MODEL)
SPEC = MODEL.tables()["dense"]


def sync(store, at, value, generation=0):
    """A worker's delta: the same number added to every parameter."""
    rows = np.full((PARAMETERS.rows, SPEC.dim), value, np.float32)
    keys = PARAMETERS.keys.tolist()
    return store.apply("dense", flush_of(keys, at, at + 1, gradients=rows, generation=generation, source=SOURCE))


class Torn(MemoryStore):
    """Rows in several calls, as of a table too large for one; something may come in between."""

    def __init__(self):
        super().__init__()
        self.between = lambda: None

    def lookup(self, table, keys, *, with_state=False, with_ids=True):
        half = len(keys) // 2
        first = super().lookup(table, keys[:half], with_state=with_state)
        self.between()
        rest = super().lookup(table, keys[half:], with_state=with_state)
        return type("Both", (), {"vectors": np.concatenate([first.vectors, rest.vectors])})


def test_a_read_that_a_synchronization_cuts_in_two_is_made_again():
    store = Torn()
    begin(store, SPEC, SOURCE)
    steps = iter(range(3))

    def between():
        if (at := next(steps, None)) is not None:
            sync(store, at, 1.0)

    store.between = between
    status, rows = read_dense(store, PARAMETERS.keys)
    assert (rows == 3.0).all()
    assert status.clock == 3


def test_readers_never_see_half_a_version_while_two_writers_synchronize():
    store = MemoryStore()
    begin(store, SPEC, SOURCE)
    lock, at, seen, done = threading.Lock(), [0], [], threading.Event()

    def write():
        for _ in range(60):
            with lock:
                sync(store, at[0], 1.0)
                at[0] += 1

    def read():
        while not done.is_set():
            clock, flat = PARAMETERS.read_version(store)
            seen.append((clock, set((flat - PARAMETERS.initial()).round(3).tolist())))

    writers, reader = [threading.Thread(target=write) for _ in range(2)], threading.Thread(target=read)
    for thread in (reader, *writers):
        thread.start()
    for thread in writers:
        thread.join(60)
    done.set()
    reader.join(60)
    assert seen
    assert all(values == {float(clock)} for clock, values in seen)


def test_versions_are_numbered_kept_and_replaced_by_newer_ones():
    store = MemoryStore()
    begin(store, SPEC, SOURCE)
    versions = DenseVersions(store, PARAMETERS.keys)
    assert versions.kept() == []
    assert versions.newest_ms() == 0
    for n in range(KEPT + 3):
        sync(store, n, 1.0)
        kept = versions.keep(0)
        assert kept is not None
        assert (kept.number, kept.clock) == (n + 1, n + 1)
    assert [v.number for v in versions.kept()] == list(range(KEPT + 3, 3, -1))
    assert versions.newest_ms() == versions.kept()[0].kept_ms
    for number in (4, KEPT + 3):
        assert (versions.rows(number) == float(number)).all()
    for number in (1, 3, KEPT + 4):
        with pytest.raises(BadRequest, match=f"version {number} .* not kept"):
            versions.rows(number)


def test_of_two_workers_that_keep_a_version_at_once_one_does():
    class Slow(MemoryStore):
        other = None

        def apply(self, table, flush):
            if table == "dense_version" and self.other is not None:
                other, self.other = self.other, None
                other()
            return super().apply(table, flush)

    store = Slow()
    begin(store, SPEC, SOURCE)
    versions = DenseVersions(store, PARAMETERS.keys)
    store.other = lambda: versions.keep(0)
    assert versions.keep(0) is None
    assert [v.number for v in versions.kept()] == [1]


def test_a_rollback_is_exact_and_refuses_deltas_in_flight():
    store = MemoryStore()
    begin(store, SPEC, SOURCE)
    versions = DenseVersions(store, PARAMETERS.keys)
    sync(store, 0, 0.1)
    versions.keep(0)
    _, wanted = read_dense(store, PARAMETERS.keys)
    for at in range(1, 6):
        sync(store, at, 1e6 / 3)
    versions.roll_back(1)
    _, rows = read_dense(store, PARAMETERS.keys)
    assert rows.tobytes() == wanted.tobytes()
    with pytest.raises(GenerationError):
        sync(store, 6, 1.0, generation=0)
    sync(store, 6, 1.0, generation=store.generation())
    versions.roll_back(1)
    assert (read_dense(store, PARAMETERS.keys)[1] == wanted).all()


def test_a_delta_on_the_old_parameters_that_slips_in_between_is_undone():
    """A worker that started over between the two raises has read what is being rolled back."""

    class Racing(MemoryStore):
        at = 1

        def apply(self, table, flush):
            if flush.ranges[0].source.topic_id == "dense-rollbacks" and self.at < 4:
                sync(self, self.at, 5.0, flush.generation)
                self.at += 1
            return super().apply(table, flush)

    store = Racing()
    begin(store, SPEC, SOURCE)
    versions = DenseVersions(store, PARAMETERS.keys)
    store.at = 9
    sync(store, 0, 0.25)
    versions.keep(0)
    sync(store, 1, 3.0)
    store.at = 2
    versions.roll_back(1)
    assert (read_dense(store, PARAMETERS.keys)[1] == 0.25).all()


def test_versions_of_other_layers_are_refused():
    store = MemoryStore()
    begin(store, SPEC, SOURCE)
    DenseVersions(store, PARAMETERS.keys).keep(0)
    others = DenseParameters(ModelSettings(dim=16, dense_layers=(8,)))
    with pytest.raises(BadRequest, match="successors or learned_gates were others"):
        DenseVersions(store, others.keys).roll_back(1)
