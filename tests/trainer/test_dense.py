"""Dense parameters: moved locally, merged through the table, cut into rows and back."""

import numpy as np
import pytest

from embedding_store.memory import MemoryStore
from embedding_store.model import ModelSettings
from embedding_store.towers import DenseParameters
from tests.flushes import flush_of
from tests.trainer.small import SOURCE, declare
from trainer.dense import DenseWorker

MODEL = ModelSettings(dim=6, history_length=2, dense_layers=(7, 5), clocks=(0.8,), learned_gates=False)


@pytest.fixture
def store():
    store = MemoryStore()
    declare(store, MODEL)
    return store


def merge(store, worker, start, stop, events, how):
    rows, keys = worker.delta(events, how)
    store.apply("dense", flush_of(keys.tolist(), start, stop, gradients=rows, events=events, source=SOURCE))
    worker.read()


def test_a_step_is_adagrad_on_the_mean_gradient(store):
    worker = DenseWorker(store, MODEL, 0.05)
    worker.read()
    w, squares = DenseParameters(MODEL).initial().astype(np.float64), 0.1
    assert len(w) == 2 * (6 * 7 + 7 + 7 * 5 + 5)
    rng = np.random.default_rng(0)
    for examples in (4, 1, 0):
        g = rng.normal(size=len(w))
        mean = g / max(1, examples)
        squares = squares + mean**2
        w = w - 0.05 * mean / np.sqrt(squares)
        worker.step(g.astype(np.float32), examples)
        np.testing.assert_allclose(worker.variable.numpy(), w, rtol=1e-5, atol=1e-6)


def test_sum_adds_both_workers_and_average_weighs_them_by_events(store):
    first = DenseParameters(MODEL).initial()
    one, two = DenseWorker(store, MODEL, 0.05), DenseWorker(store, MODEL, 0.05)
    for worker in (one, two):
        worker.read()
    rng = np.random.default_rng(1)
    for worker in (one, two):
        worker.step(rng.normal(size=len(first)).astype(np.float32), 1)
    moved = [worker.variable.numpy() - first for worker in (one, two)]
    merge(store, one, 0, 30, 30, "average")  # nobody came between: all of it
    np.testing.assert_allclose(one.variable.numpy(), first + moved[0], rtol=1e-5, atol=1e-6)
    merge(store, two, 30, 40, 10, "average")  # 30 events of another since its base
    np.testing.assert_allclose(two.variable.numpy(), first + moved[0] + 0.25 * moved[1], rtol=1e-5, atol=1e-6)
    two.step(np.ones(len(first), np.float32), 1)
    base, change = DenseParameters(MODEL).read(store), two.delta(10, "sum")[0]
    one.step(-np.ones(len(first), np.float32), 1)
    merge(store, one, 40, 60, 20, "sum")
    assert (two.delta(10, "sum")[0] == change).all()  # scaled by nobody's events
    assert np.abs(DenseParameters(MODEL).read(store) - base).max() > 0.01


def test_reading_drops_what_was_not_merged(store):
    worker = DenseWorker(store, MODEL, 0.05)
    worker.read()
    worker.step(np.ones(DenseParameters(MODEL).size, np.float32), 1)
    worker.read()
    assert (worker.variable.numpy() == DenseParameters(MODEL).initial()).all()
    assert not worker.delta(5, "sum")[0].any()


def test_without_dense_layers_there_is_nothing():
    model = MODEL.model_copy(update={"dense_layers": ()})
    store = MemoryStore()
    declare(store, model)
    worker = DenseWorker(store, model, 0.05)
    worker.read()
    worker.step(np.ones(1, np.float32), 3)
    assert worker.variable.numpy().tolist() == [0.0]


def test_rows_and_flat_are_inverse_and_layers_do_not_overlap():
    parameters = DenseParameters(MODEL)
    flat = np.arange(parameters.size, dtype=np.float32)
    rows = parameters.to_rows(flat)
    assert rows.shape == (len(parameters.keys), 64)
    assert rows.reshape(-1)[: parameters.size].tolist() == flat.tolist()
    towers = parameters.to_towers(flat)
    values = np.concatenate([a.reshape(-1) for side in (towers.user, towers.item) for pair in side for a in pair])
    assert sorted(values.tolist()) == flat.tolist()
    shapes = [w.shape for w, _ in towers.user]
    assert shapes == [w.shape for w, _ in towers.item] == [(6, 7), (7, 5)]


def test_gates_move_by_the_sum_at_their_own_rate_and_layers_as_before():
    model = ModelSettings(dim=6, history_length=2, dense_layers=(7,))
    store = MemoryStore()
    declare(store, model)
    worker = DenseWorker(store, model, 0.05, 0.02)
    worker.read()
    parameters, rng = DenseParameters(model), np.random.default_rng(0)
    first, n = parameters.initial().astype(np.float64), parameters.gates
    g, summed = rng.normal(size=len(first)), rng.normal(size=n)
    worker.step(g.astype(np.float32), 4, worker.gates.of(summed.astype(np.float32)))
    g = np.concatenate([summed, g[n:] / 4])
    rate = np.where(np.arange(len(g)) < n, 0.02, 0.05)
    want = first - rate * g / np.sqrt(0.1 + g**2)
    np.testing.assert_allclose(worker._local, want, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(worker.gates.flat(), want[:n], rtol=1e-5, atol=1e-6)
    merge(store, worker, 0, 10, 10, "average")
    np.testing.assert_allclose(parameters.read(store), want, rtol=1e-5, atol=1e-6)
