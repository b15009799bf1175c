"""The dense parameters: where they lie, what they start from, and what the layers do with them."""

import numpy as np
import pytest

from embedding_store.memory import MemoryStore
from embedding_store.model import ModelSettings
from embedding_store.towers import DenseParameters, forward
from tests.flushes import SOURCE, begin, flush_of

MODEL = ModelSettings(dim=5, dense_layers=(7, 3))


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
    parameters = DenseParameters(ModelSettings(dim=5))
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
