"""The dense parameters: where they lie, what they start from, and what the layers do with them."""

import numpy as np
import pytest

from embedding_store.memory import MemoryStore
from embedding_store.model import ModelSettings
from embedding_store.towers import DenseParameters, bucket_of, forward, initial_gates
from tests.flushes import SOURCE, begin, flush_of

MODEL = ModelSettings(dim=5, dense_layers=(7, 3), clocks=(0.8,), learned_gates=False)


def test_the_layers_are_relu_but_for_the_last():
    rng = np.random.default_rng(0)
    layers = tuple(
        (rng.normal(size=s).astype(np.float32), rng.normal(size=s[1]).astype(np.float32)) for s in ((5, 7), (7, 3))
    )
    x = rng.normal(size=(11, 5)).astype(np.float32)
    (w, b), (w2, b2) = layers
    want = np.maximum(x.astype(np.float64) @ w + b, 0) @ w2 + b2
    out = forward(layers, x)
    np.testing.assert_allclose(out, want, rtol=1e-5, atol=1e-5)
    assert out.dtype == np.float32
    assert (out < 0).any()
    assert forward((), x) is x
    assert forward(layers, x[:0]).shape == (0, 3)


def test_the_start_is_glorot_a_function_of_the_seed_and_differs_between_towers():
    parameters = DenseParameters(MODEL)
    flat = parameters.initial()
    assert (flat == DenseParameters(MODEL).initial()).all()
    assert (flat != DenseParameters(MODEL.model_copy(update={"seed": 8})).initial()).any()
    towers = parameters.to_towers(flat)
    for side in (towers.user, towers.item):
        for weights, bias in side:
            limit = np.sqrt(6 / sum(weights.shape))
            assert 0.5 * limit < np.abs(weights).max() <= limit
            assert not bias.any()
    assert (towers.user[0][0] != towers.item[0][0]).all()
    wide = DenseParameters(ModelSettings(dim=64, dense_layers=(256,)))
    weights = wide.to_towers(wide.initial()).user[0][0]
    assert weights.std() == pytest.approx(np.sqrt(2 / (64 + 256)), rel=0.05)
    assert abs(weights.mean()) < 0.001


def test_the_table_holds_deltas():
    parameters, store = DenseParameters(MODEL), MemoryStore()
    begin(store, MODEL.tables()["dense"])
    assert (parameters.read(store) == parameters.initial()).all()
    delta = np.random.default_rng(1).normal(size=parameters.size).astype(np.float32)
    for i in range(2):
        rows = parameters.to_rows(delta)
        store.apply("dense", flush_of(parameters.keys.tolist(), i, i + 1, gradients=rows, source=SOURCE))
    np.testing.assert_allclose(parameters.read(store), parameters.initial() + 2 * delta, rtol=1e-5, atol=1e-6)


def test_without_layers_there_are_no_parameters():
    parameters = DenseParameters(ModelSettings(dim=5, clocks=(0.8,), learned_gates=False))
    towers = parameters.to_towers(parameters.read(MemoryStore()))
    assert (parameters.size, len(parameters.initial()), towers.user, towers.item) == (0, 0, (), ())


def test_views_share_the_flat_vector():
    parameters = DenseParameters(MODEL)
    flat = parameters.initial()
    towers = parameters.to_towers(flat)
    for side, layout in zip((towers.user, towers.item), parameters.layout(), strict=True):
        for (weights, bias), (at, inputs, outputs) in zip(side, layout, strict=True):
            assert weights.shape == (inputs, outputs)
            assert np.shares_memory(weights, flat)
            assert (weights.reshape(-1) == flat[at : at + inputs * outputs]).all()
            assert np.shares_memory(bias, flat)


def test_gates_begin_as_recencies_and_lie_before_the_layers():
    model = ModelSettings(dim=4, history_length=5, clocks=(0.9, 0.5), popularity_weight=0.3, dense_layers=(3,))
    parameters = DenseParameters(model)
    flat = parameters.initial()
    gates = parameters.to_towers(flat).gates
    np.testing.assert_allclose(np.exp(gates.logits), [0.9 ** np.arange(5), 0.5 ** np.arange(5)], rtol=1e-5)
    assert (gates.scales == 1).all()
    assert (gates.prior == np.float32(0.3)).all()
    assert gates.size == parameters.gates == 2 * 5 + 2 * 8 + 8
    assert parameters.size == gates.size + 2 * (4 * 3 + 3)
    assert np.shares_memory(gates.logits, flat)
    assert (gates.flat() == flat[: gates.size]).all()
    assert parameters.layout()[0][0][0] == gates.size
    again = gates.of(np.arange(gates.size, dtype=np.float32))
    assert again.flat().tolist() == list(range(gates.size))


def test_the_gates_of_the_default_fill_one_row_of_the_dense_table():
    assert DenseParameters(ModelSettings()).rows == 1


def test_gates_that_are_not_learned_are_no_parameters_and_still_there():
    model = ModelSettings(dim=4, learned_gates=False)
    towers = DenseParameters(model).to_towers(np.zeros(0, np.float32))
    assert (towers.gates.flat() == initial_gates(model).flat()).all()


def test_buckets_double():
    lengths = np.array([0, 1, 2, 3, 6, 7, 14, 15, 62, 63, 126, 127, 5000])
    assert bucket_of(lengths).tolist() == [0, 1, 1, 2, 2, 3, 3, 4, 5, 6, 6, 7, 7]
