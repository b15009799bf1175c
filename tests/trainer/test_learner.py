"""Gradients against the formula in NumPy float64, the towers that serving computes, and what is not finite."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from embedding_store.contract import Rows
from embedding_store.memory import MemoryStore
from embedding_store.model import ModelSettings
from embedding_store.towers import DenseParameters, forward
from native.ragged import Ragged
from tests.flushes import flush_of
from tests.trainer.numpy_step import softmax_step
from tests.trainer.small import SOURCE, declare
from trainer.dense import DenseWorker
from trainer.examples import Examples
from trainer.learner import Learner


class Kept:
    """Stands for the random generator: examples keep their order."""

    def permutation(self, n):
        return np.arange(n)


def rows_of(rng, n, dim):
    return Rows(
        vectors=rng.normal(size=(n, dim)).astype(np.float32),
        found=np.ones(n, bool),
        clock=np.zeros(n, np.int64),
        count=rng.integers(0, 30, n),
        updated_ms=np.zeros(n, np.int64),
        last_seen=np.zeros(n, np.int64),
        gap=np.where(rng.random(n) < 0.3, 0, rng.uniform(0.5, 40, n)).astype(np.float32),
        popularity=np.zeros(n, np.float32),
        check=np.zeros(n, np.uint32),
        ids=Ragged(np.zeros(n + 1, np.int64), np.zeros(0, np.uint8)),
    )


def examples_of(seed, model, n=21, fresh=8, items=13, users=6):
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 4, n)
    recent = rng.integers(-1, items, (n, model.history_length))
    recent[0] = -1
    with_users = model.user_id_vector
    is_column = rng.random(n) < 0.9
    return Examples(
        fresh=fresh,
        items=rows_of(rng, items, model.dim),
        item_keys=np.arange(items, dtype=np.uint64),
        target=rng.integers(0, items, n),
        recent=recent,
        is_row=(rng.random(n) < 0.7) & is_column & (with_users | (recent >= 0).any(axis=1)),
        is_column=is_column,
        weight=rng.uniform(0.1, 3, n).astype(np.float32),
        seen_offsets=np.concatenate([[0], np.cumsum(counts)]),
        seen=rng.integers(-1, items, counts.sum()),
        user_keys=np.arange(users if with_users else 0, dtype=np.uint64),
        users=rows_of(rng, users, model.dim) if with_users else None,
        user=rng.integers(0, users, n) if with_users else np.full(n, -1, np.int64),
    )


def learner_of(model, group, rng=None):
    store = MemoryStore()
    declare(store, model)
    dense = DenseWorker(store, model, 0.05)
    parameters = DenseParameters(model)
    if parameters.size:
        deltas = parameters.to_rows(np.random.default_rng(9).normal(0, 0.1, parameters.size).astype(np.float32))
        store.apply("dense", flush_of(parameters.keys.tolist(), 0, 1, gradients=deltas, source=SOURCE))
        dense.read()
    return Learner(model, group, dense, rng or Kept()), dense, parameters.to_towers(parameters.read(store))


def oracle(examples, model, group, clock, towers):
    """The docstring of `trainer.learner`, example by example, in float64."""
    n = len(examples.target)
    vectors = examples.items.vectors.astype(np.float64)
    padded = -(-n // group) * group
    w = model.recency ** np.arange(model.history_length) * (examples.recent >= 0)
    total = w.sum(axis=1, keepdims=True)
    w = np.divide(w, total, out=np.zeros_like(w), where=total > 0)
    pooled = np.zeros((padded, model.dim))
    pooled[:n] = np.einsum("nk,nkd->nd", w, vectors[examples.recent])
    if examples.users is not None:
        pooled[:n] += examples.users.vectors[examples.user]
    items, bias = np.zeros((padded, model.dim)), np.zeros(padded)
    items[:n] = vectors[examples.target]
    share = examples.fresh / n
    mask, weight = np.zeros((padded, group), bool), np.zeros(padded)
    for i in range(n):
        t = examples.target[i]
        gap = examples.items.gap[t] if examples.items.gap[t] > 0 else clock
        often = min(1.0, max(1, examples.items.count[t]) / clock)
        bias[i] = -np.log(share / max(1.0, gap) + (1 - share) * often)
        weight[i] = examples.weight[i] if examples.is_row[i] else 0.0
        own = set(examples.seen[examples.seen_offsets[i] : examples.seen_offsets[i + 1]].tolist()) | {t}
        start = i // group * group
        for j in range(min(group, n - start)):
            mask[i, j] = examples.is_column[start + j] and (start + j == i or examples.target[start + j] not in own)
    layers = [[(a.astype(np.float64), b.astype(np.float64)) for a, b in side] for side in (towers.user, towers.item)]
    loss, d_pooled, d_items, flat = softmax_step(pooled, items, bias, mask, weight, group, *layers)
    item_gradients, user_gradients = np.zeros_like(vectors), np.zeros((len(examples.user_keys), model.dim))
    for i in range(n):
        item_gradients[examples.target[i]] += d_items[i]
        for k, slot in enumerate(examples.recent[i]):
            if slot >= 0:
                item_gradients[slot] += w[i, k] * d_pooled[i]
        if examples.users is not None:
            user_gradients[examples.user[i]] += d_pooled[i]
    return loss / max(1.0, weight.sum()), item_gradients, user_gradients, flat


MODELS = {
    "history": ModelSettings(dim=5, history_length=4),
    "user": ModelSettings(dim=5, history_length=4, user_id_vector=True),
    "dense": ModelSettings(dim=5, history_length=4, dense_layers=(7, 3)),
    "dense, user": ModelSettings(dim=4, history_length=2, dense_layers=(4,), user_id_vector=True, recency=1.0),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("group", [7, 8, 32])
def test_gradients_are_those_of_the_formula(name, group):
    model, clock = MODELS[name], 25
    learner, dense, towers = learner_of(model, group)
    before = dense._local.copy()
    for seed in range(3):
        towers = dense._parameters.to_towers(dense._local.copy())
        examples = examples_of(seed, model)
        loss, items, users, flat = oracle(examples, model, group, clock, towers)
        squares = dense._squares.copy()
        before = dense._local.copy()
        step = learner.learn(examples, clock)
        assert step.finite
        assert step.rows == examples.is_row.sum() > 0
        assert step.loss == pytest.approx(loss, rel=1e-4)
        np.testing.assert_allclose(step.item_gradients, items, rtol=1e-3, atol=2e-5)
        np.testing.assert_allclose(step.user_gradients, users, rtol=1e-3, atol=2e-5)
        assert step.item_keys is examples.item_keys
        assert step.user_keys is examples.user_keys
        assert np.abs(items).max() > 0.1
        if model.dense_layers:
            mean = flat / step.rows
            moved = before - 0.05 * mean / np.sqrt(squares + mean**2)
            np.testing.assert_allclose(dense._local, moved, rtol=1e-3, atol=2e-5)


@pytest.mark.parametrize("name", MODELS)
def test_padding_changes_nothing(name):
    model = MODELS[name]
    examples = examples_of(4, model)
    exact, dense, _ = learner_of(model, 21)
    padded, padded_dense, _ = learner_of(model, 64)
    one, two = exact.learn(examples, 10), padded.learn(examples, 10)
    np.testing.assert_allclose(one.item_gradients, two.item_gradients, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(one.user_gradients, two.user_gradients, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(dense._local, padded_dense._local, rtol=1e-5, atol=1e-7)
    assert one.loss == pytest.approx(two.loss, rel=1e-5)
    assert one.rows == two.rows


def test_a_shuffle_within_one_group_changes_nothing_and_groups_do_mix():
    model = MODELS["history"]
    examples = examples_of(5, model)
    one = learner_of(model, 32)[0].learn(examples, 10)
    shuffled = learner_of(model, 32, np.random.default_rng(1))[0].learn(examples, 10)
    np.testing.assert_allclose(one.item_gradients, shuffled.item_gradients, rtol=1e-4, atol=1e-5)
    apart = learner_of(model, 8, np.random.default_rng(1))[0].learn(examples, 10)
    assert np.abs(apart.item_gradients - one.item_gradients).max() > 1e-2


def test_no_rows_no_gradient():
    model = MODELS["history"]
    examples = dataclasses.replace(examples_of(0, model), is_row=np.zeros(21, bool))
    step = learner_of(model, 8)[0].learn(examples, 0)
    assert (step.finite, step.rows, step.loss) == (True, 0, 0.0)
    assert not step.item_gradients.any()


def test_columns_that_everybody_leaves_out_get_an_exact_zero():
    model = MODELS["history"]
    examples = examples_of(1, model)
    key = examples.target[examples.is_row][0]
    others = examples.target != key
    examples.recent[examples.recent == key] = -1
    dead = dataclasses.replace(examples, is_column=examples.is_column & others, is_row=examples.is_row & others)
    step = learner_of(model, 32)[0].learn(dead, 10)
    assert not step.item_gradients[key].any()
    assert step.item_gradients.any()


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e25])
@pytest.mark.parametrize("where", ["item", "user"])
def test_what_is_not_finite_is_said_and_moves_nothing(bad, where):
    model = MODELS["dense, user"]
    learner, dense, _ = learner_of(model, 8)
    before, examples = dense._local.copy(), examples_of(2, model)
    rows = examples.items if where == "item" else examples.users
    used = examples.target[examples.is_row][0] if where == "item" else examples.user[examples.is_row][0]
    rows.vectors[used] = bad
    assert not learner.learn(examples, 10).finite
    assert (dense._local == before).all()
    assert learner.learn(examples_of(3, model), 10).finite


def test_a_bad_vector_that_only_a_cold_user_meets_is_noticed():
    """Masked in the only row it could reach, an item's NaN still gets into that user's own gradient."""
    model = ModelSettings(dim=3, history_length=1, user_id_vector=True)
    rng = np.random.default_rng(0)
    items = rows_of(rng, 2, 3)
    items.vectors[1] = np.nan
    examples = Examples(
        fresh=2, items=items, item_keys=np.arange(2, dtype=np.uint64), target=np.array([0, 1]),
        recent=np.full((2, 1), -1), is_row=np.array([True, False]), is_column=np.array([True, False]),
        weight=np.ones(2, np.float32), seen_offsets=np.array([0, 1, 1]), seen=np.array([1]),
        user_keys=np.zeros(1, np.uint64), users=rows_of(rng, 1, 3), user=np.zeros(2, np.int64),
    )  # fmt: skip
    step = learner_of(model, 2)[0].learn(examples, 10)
    assert np.isfinite(step.item_gradients).all()
    assert not np.isfinite(step.user_gradients).all()
    assert not step.finite


@pytest.mark.parametrize("name", ["dense", "dense, user"])
def test_the_trained_towers_are_the_served_ones(name):
    """No training-serving skew: TensorFlow's layers and NumPy's give the same outputs from the same flat vector."""
    import tensorflow as tf

    from trainer.learner import _forward

    model = MODELS[name]
    _, dense, towers = learner_of(model, 8)
    user, item = dense.towers(tf.constant(dense._local))
    x = np.random.default_rng(0).normal(size=(9, model.dim)).astype(np.float32)
    for layers, served in ((user, towers.user), (item, towers.item)):
        np.testing.assert_allclose(_forward(layers, tf.constant(x)).numpy(), forward(served, x), rtol=1e-5, atol=1e-6)
    assert not np.allclose(forward(towers.user, x), forward(towers.item, x))
    assert towers.user[-1][0].shape[1] == model.output_dim
