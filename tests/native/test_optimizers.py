"""Each step against NumPy in float64, and what it leaves alone."""

import numpy as np
import pytest

from embedding_store.spec import Adagrad, Adam, RowwiseAdagrad, Sgd, TableSpec
from native import optimizers
from tests.eager import learned

STEPS = {
    "add": (0, lambda w, s, g: optimizers.add(w, g)),
    "sgd": (0, lambda w, s, g: optimizers.sgd(w, g, np.float32(0.05))),
    "adagrad": (lambda dim: dim, lambda w, s, g: optimizers.adagrad(w, s, g, np.float32(0.05), np.float32(1e-7))),
    "rowwise_adagrad": (
        lambda dim: 1, lambda w, s, g: optimizers.rowwise_adagrad(w, s, g, np.float32(0.05), np.float32(1e-7))
    ),
    "adam": (lambda dim: 2 * dim + 1, lambda w, s, g: optimizers.adam(w, s, g, 0.05, 0.9, 0.999, 1e-7)),
}  # fmt: skip
SPECS = {
    "sgd": Sgd(learning_rate=0.05),
    "adagrad": Adagrad(learning_rate=0.05),
    "rowwise_adagrad": RowwiseAdagrad(learning_rate=0.05),
    "adam": Adam(learning_rate=0.05),
}
EVERY = pytest.mark.parametrize("kind", STEPS)
SHAPES = pytest.mark.parametrize(("n", "dim"), [(0, 4), (1, 1), (5, 7), (100, 64)])


def columns(kind: str, n: int, dim: int):
    rng = np.random.default_rng(n * 100 + dim)
    vectors, gradients = rng.normal(size=(2, n, dim)).astype(np.float32)
    gradients[::4] = 0
    gradients.flags.writeable = False
    width = STEPS[kind][0]
    state = rng.random((n, width(dim) if callable(width) else width)).astype(np.float32)
    if kind == "adam":
        state[:, -1] = rng.integers(0, 50, n)
    return vectors, state, gradients


@EVERY
@SHAPES
def test_a_step_is_its_formula(kind, n, dim):
    vectors, state, gradients = columns(kind, n, dim)
    w, s = vectors.copy(), state.copy()
    STEPS[kind][1](w, s, gradients)
    spec = TableSpec(name="t", dim=dim, **({"optimizer": SPECS[kind]} if kind in SPECS else {}))
    for i in range(n):
        want, after = vectors[i].astype(np.float64), state[i].astype(np.float64)
        if gradients[i].any():
            want, after = learned(spec, want, after, gradients[i].astype(np.float64), 0)
        np.testing.assert_allclose(w[i], want, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(s[i], after, rtol=1e-6, atol=1e-8)


@EVERY
@pytest.mark.parametrize("fresh", [True, False])
def test_a_gradient_of_zeros_moves_nothing(kind, fresh):
    vectors, state, _ = columns(kind, 9, 6)
    if fresh:
        state[:] = 0
    w, s = vectors.copy(), state.copy()
    STEPS[kind][1](w, s, np.zeros((9, 6), np.float32))
    assert (w == vectors).all()
    assert (s == state).all()


@EVERY
def test_not_finite_in_not_finite_out(kind):
    vectors, state, _ = columns(kind, 3, 2)
    w = vectors.copy()
    STEPS[kind][1](w, state, np.array([[np.nan, 1], [0, 0], [np.inf, 1]], np.float32))
    assert not np.isfinite(w[0, 0])
    assert not np.isfinite(w[2, 0])
    assert (w[1] == vectors[1]).all()


def test_lazy_adam_counts_a_rows_own_updates():
    """A rare row's first step is as long as anybody's: η, whenever it comes and however often others were updated."""
    w, s = np.zeros((2, 1), np.float32), np.zeros((2, 3), np.float32)
    for _ in range(500):
        optimizers.adam(w, s, np.array([[1.0], [0.0]], np.float32), 0.1, 0.9, 0.999, 1e-7)
    assert (s[:, 2] == [500, 0]).all()
    optimizers.adam(w, s, np.array([[0.0], [1e-3]], np.float32), 0.1, 0.9, 0.999, 1e-9)
    assert w[1, 0] == pytest.approx(-0.1, rel=1e-4)
    assert s[1].tolist() == pytest.approx([1e-4, 1e-9, 1], rel=1e-4)


def test_adams_count_stands_still_where_float32_ends():
    w, s = np.zeros((1, 1), np.float32), np.array([[0.5, 0.25, 2.0**24]], np.float32)
    optimizers.adam(w, s, np.array([[0.5]], np.float32), 0.1, 0.9, 0.999, 1e-9)
    assert s[0, 2] == 2.0**24
    assert w[0, 0] == pytest.approx(-0.1, rel=1e-3)


@SHAPES
def test_clip(n, dim):
    _, _, gradients = columns("sgd", n, dim)
    out = np.empty_like(gradients)
    optimizers.clip(gradients, 1.5, out)
    norms = np.linalg.norm(gradients.astype(np.float64), axis=1)
    scale = np.minimum(1, 1.5 / np.maximum(norms, 1e-30))
    np.testing.assert_allclose(out, gradients * scale[:, None], rtol=1e-6)
    assert (out[norms <= 1.5] == gradients[norms <= 1.5]).all()


def test_clip_neither_overflows_nor_hides_nan():
    gradients = np.array([[1e15, 1e15], [1e-30, 0], [np.nan, 5]], np.float32)
    out = np.empty_like(gradients)
    optimizers.clip(gradients, 2.0, out)
    np.testing.assert_allclose(out[0], [np.sqrt(2)] * 2, rtol=1e-6)
    assert (out[1] == gradients[1]).all()
    assert np.isnan(out[2, 0])
