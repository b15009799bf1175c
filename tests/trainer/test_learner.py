"""Gradients against the formula in NumPy float64, the towers that serving computes, and what is not finite."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from embedding_store.contract import Rows
from embedding_store.memory import MemoryStore
from embedding_store.model import ModelSettings
from embedding_store.towers import DenseParameters, Gates, forward
from native.ragged import Ragged
from tests.flushes import flush_of
from tests.trainer.numpy_step import softmax_step
from tests.trainer.small import SOURCE, declare
from trainer import learner as learner_module
from trainer.dense import DenseWorker
from trainer.examples import Examples
from trainer.layered_step import step_on_tensorflow, step_with_layers
from trainer.learner import Learner
from trainer.settings import TrainerSettings
from trainer.similarity import scaled
from trainer.softmax_step import step_without_layers


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
        popularity=np.where(rng.random(n) < 0.2, 0, rng.uniform(0, 3, n)).astype(np.float32),
        check=np.zeros(n, np.uint32),
        ids=Ragged(np.zeros(n + 1, np.int64), np.zeros(0, np.uint8)),
        state=np.full((n, dim), 0.1, np.float32),
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
        length=rng.integers(0, 300, n),
        is_row=(rng.random(n) < 0.7) & is_column & (with_users | (recent >= 0).any(axis=1)),
        is_column=is_column,
        label=np.concatenate([(rng.random(fresh) < 0.6), np.ones(n - fresh)]).astype(np.float32),
        weight=rng.uniform(0.1, 3, n).astype(np.float32),
        seen_start=np.cumsum(counts) - counts,
        seen_stop=np.cumsum(counts),
        seen=rng.integers(-1, items, counts.sum()),
        user_keys=np.arange(users if with_users else 0, dtype=np.uint64),
        users=rows_of(rng, users, model.dim) if with_users else None,
        user=rng.integers(0, users, n) if with_users else np.full(n, -1, np.int64),
        positive_weight=float(fresh),
    )


def settings_of(group, **changes):
    """One pass in the store's own optimizer, replays as they are, labels as they are."""
    plain = {"passes": 1, "update_events": 0, "replay_drop": 0.0, "label_smoothing": 0.0}
    return TrainerSettings.model_validate({"group": max(16, group), **plain, **changes}).model_copy(
        update={"group": group}
    )


def learner_of(model, group, rng=None, **changes):
    store = MemoryStore()
    declare(store, model)
    dense = DenseWorker(store, model, 0.05)
    parameters = DenseParameters(model)
    if parameters.size:
        deltas = parameters.to_rows(np.random.default_rng(9).normal(0, 0.1, parameters.size).astype(np.float32))
        store.apply("dense", flush_of(parameters.keys.tolist(), 0, 1, gradients=deltas, source=SOURCE))
        dense.read()
    return Learner(model, settings_of(group, **changes), dense, rng or Kept()), dense


def user_vectors(vectors, recent, bucket, gates, clocks):
    """(pooled, shares (n, clocks, length)) in float64."""
    n, part = len(recent), vectors.shape[1] // clocks
    pooled, shares = np.zeros((n, vectors.shape[1])), np.zeros((n, clocks, recent.shape[1]))
    for i in range(n):
        there = np.flatnonzero(recent[i] >= 0)
        if len(there):
            for v in range(clocks):
                share = np.exp(gates.logits[v, there].astype(np.float64))
                shares[i, v, there] = share / share.sum()
                cut = slice(v * part, (v + 1) * part)
                pooled[i, cut] = gates.scales[v, bucket[i]] * shares[i, v] @ vectors[recent[i], cut]
    return pooled, shares


def oracle(examples, model, group, clock, towers):
    """The docstrings of `trainer.learner` and `embedding_store.towers`, example by example, in float64."""
    n, gates, clocks = len(examples.target), towers.gates, len(model.clocks)
    vectors, part = examples.items.vectors.astype(np.float64), model.dim // len(model.clocks)
    if not model.dense_layers:
        group = -(-n // -(-n // group))  # groups are as even as can be
    padded = -(-n // group) * group
    bucket = np.array([min(int(np.log2(k + 1)), 7) for k in examples.length])
    users = np.zeros((padded, model.dim))
    users[:n], shares = user_vectors(vectors, examples.recent, bucket, gates, clocks)
    if examples.users is not None:
        users[:n] += examples.users.vectors[examples.user]
    items, bias, popularity, prior = np.zeros((padded, model.dim)), *np.zeros((3, padded))
    items[:n], prior[:n] = vectors[examples.target], gates.prior[bucket]
    share = examples.fresh / n
    mask, weight = np.zeros((padded, group), bool), np.zeros(padded)
    for i in range(n):
        t = examples.target[i]
        now = examples.items.popularity[t] * 0.5 ** ((clock - examples.items.last_seen[t]) / model.popularity_half_life)
        popularity[i] = np.log(max(now, model.popularity_floor))
        often = min(1.0, max(1, examples.items.count[t]) / clock)
        bias[i] = -np.log(max(share * now + (1 - share) * often, 1 / clock))  # of a first batch: all shares are of one
        weight[i] = examples.weight[i] if examples.is_row[i] else 0.0
        own = set(examples.seen[examples.seen_start[i] : examples.seen_stop[i]].tolist()) | {t}
        start = i // group * group
        for j in range(min(group, n - start)):
            mask[i, j] = examples.is_column[start + j] and (start + j == i or examples.target[start + j] not in own)
    layers = [[(a.astype(np.float64), b.astype(np.float64)) for a, b in side] for side in (towers.user, towers.item)]
    loss, d_users, d_items, d_prior, flat = softmax_step(
        users, items, prior, popularity, bias, mask, weight, group, 0.0, *layers
    )
    item_gradients, user_gradients = np.zeros_like(vectors), np.zeros((len(examples.user_keys), model.dim))
    d_gates = Gates(*(np.zeros(g.shape) for g in (gates.logits, gates.scales, gates.prior, gates.transition)))
    for i in range(n):
        item_gradients[examples.target[i]] += d_items[i]
        for v in range(clocks):
            cut = slice(v * part, (v + 1) * part)
            scale = gates.scales[v, bucket[i]]
            for k, slot in enumerate(examples.recent[i]):
                if slot >= 0:
                    item_gradients[slot, cut] += scale * shares[i, v, k] * d_users[i, cut]
            if i < examples.fresh and weight[i]:
                dots = vectors[examples.recent[i], cut] @ d_users[i, cut] * (examples.recent[i] >= 0)
                mean = shares[i, v] @ dots
                d_gates.scales[v, bucket[i]] += mean
                d_gates.logits[v] += scale * shares[i, v] * (dots - mean)
        if i < examples.fresh and model.popularity_weight:
            d_gates.prior[bucket[i]] += d_prior[i]
        if examples.users is not None:
            user_gradients[examples.user[i]] += d_users[i]
    return loss / max(1.0, weight.sum()), item_gradients, user_gradients, flat, d_gates.flat()


MODELS = {
    "history": ModelSettings(dim=6, history_length=4),
    "one clock": ModelSettings(dim=5, history_length=4, clocks=(0.8,), learned_gates=False),
    "no prior": ModelSettings(dim=6, history_length=4, clocks=(0.9, 0.7, 0.4), popularity_weight=0.0),
    "user": ModelSettings(dim=6, history_length=4, user_id_vector=True),
    "dense": ModelSettings(dim=6, history_length=4, dense_layers=(7, 3)),
    "dense, user": ModelSettings(dim=4, history_length=2, dense_layers=(4,), user_id_vector=True, clocks=(1.0,)),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("group", [7, 32])
def test_gradients_are_those_of_the_formula(name, group):
    model, clock = MODELS[name], 25
    for seed in range(3):
        learner, dense = learner_of(model, group)
        parameters = dense._parameters
        towers = parameters.to_towers(dense._local.copy())
        examples = examples_of(seed, model)
        loss, items, users, flat, gates = oracle(examples, model, group, clock, towers)
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
        g, rate = np.zeros(parameters.size), np.full(parameters.size, 0.05)
        if model.learned_gates:
            g[: parameters.gates], rate[: parameters.gates] = gates, 0.02
        if model.dense_layers:
            g[parameters.gates :] = flat / step.rows
        np.testing.assert_allclose(dense._local, before - rate * g / np.sqrt(0.1 + g**2), rtol=1e-3, atol=2e-5)


SCALED = {
    "cosine": ModelSettings(dim=6, history_length=4, similarity="cosine"),
    "cold cosine": ModelSettings(dim=6, history_length=4, similarity="cosine", temperature=0.2),
    "warm dot": ModelSettings(dim=6, history_length=4, temperature=3.0),
}


@pytest.mark.parametrize("name", ["history", "no prior", "one clock", *SCALED])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_step_without_tensorflow_has_its_gradients(name, smoothing):
    """To 3e-7 of the largest: what serves speed must not be another model."""
    model, group, rng = {**MODELS, **SCALED}[name], 32, np.random.default_rng(0)
    n, settings = 2 * group, settings_of(group, label_smoothing=smoothing)
    dense = learner_of(model, group)[1]
    columns = [rng.normal(size=(n, model.dim)).astype(np.float32) for _ in range(2)]
    columns += [rng.normal(size=n).astype(np.float32) for _ in range(3)]
    mask = rng.random((n, group)) < 0.7
    mask[np.arange(n), np.arange(n) % group] = True
    weight = rng.uniform(0, 2, n).astype(np.float32)
    weight[::5] = 0
    step = scaled(step_without_layers(smoothing), cosine=model.similarity == "cosine", temperature=model.temperature)
    fast = step(*columns, mask, weight)
    slow = step_on_tensorflow(model, settings.group, dense, smoothing)(*columns, mask, weight)
    assert fast.loss == pytest.approx(slow.loss, rel=1e-5)
    for one, two in zip(fast[1:4], slow[1:4], strict=True):
        colder = max(1.0, 1.0 / model.temperature)
        assert np.abs(one - two).max() <= 3e-7 * max(1.0, np.abs(two).max()) * 4 * colder
        assert np.abs(two).max() > 0.1


LAYERED = {
    "dense": MODELS["dense"],
    "dense, user": MODELS["dense, user"],
    "dense, cosine": MODELS["dense"].model_copy(update={"similarity": "cosine", "temperature": 0.5}),
}


@pytest.mark.parametrize("name", LAYERED)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_step_of_a_processor_has_the_gradients_of_an_accelerators(name, smoothing):
    """Layers by BLAS with the softmax by numba, against all of it by TensorFlow; more rows than a product's block."""
    model, group, rng = LAYERED[name], 32, np.random.default_rng(1)
    n, dense = 5 * group, learner_of(model, group)[1]
    columns = [rng.normal(size=(n, model.dim)).astype(np.float32) for _ in range(2)]
    columns += [rng.normal(size=n).astype(np.float32) for _ in range(3)]
    mask = rng.random((n, group)) < 0.7
    mask[np.arange(n), np.arange(n) % group] = True
    weight = rng.uniform(0, 2, n).astype(np.float32)
    weight[::5] = 0
    fast = step_with_layers(model, dense, smoothing)(*columns, mask, weight)
    slow = step_on_tensorflow(model, group, dense, smoothing)(*columns, mask, weight)
    assert fast.loss == pytest.approx(slow.loss, rel=1e-5)
    for one, two in zip(fast[1:], slow[1:], strict=True):
        assert one.shape == two.shape
        assert np.abs(one - two).max() <= 3e-6 * max(1.0, np.abs(two).max())
        assert np.abs(two).max() > 0.1


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("side", [0, 1])
def test_what_is_not_finite_goes_through_layers(bad, side):
    """A ReLU that made zeros of it would hide it."""
    model, rng = LAYERED["dense"], np.random.default_rng(2)
    dense = learner_of(model, 16)[1]
    columns = [rng.normal(size=(16, model.dim)).astype(np.float32) for _ in range(2)]
    columns[side][3] = bad
    columns += [rng.normal(size=16).astype(np.float32) for _ in range(3)]
    found = step_with_layers(model, dense, 0.1)(*columns, np.ones((16, 16), bool), np.ones(16, np.float32))
    assert not np.isfinite(found.loss)
    assert not np.isfinite(found.dense).all()


def test_layers_learn_from_all_parts_of_a_pass():
    """A pass is learned some groups at a time: what layers are told is the sum over all."""
    model, n = LAYERED["dense, user"], 2200
    examples = examples_of(4, model, n=n, fresh=n)
    whole, parts = (learner_of(model, 50, update_events=0, passes=1) for _ in range(2))
    whole[0]._whole = True
    start = whole[1]._local.copy()
    for learner, _ in (whole, parts):
        learner.learn(examples, clock=100)
    moved = [dense._local - start for _, dense in (whole, parts)]
    np.testing.assert_allclose(moved[0], moved[1], rtol=1e-3, atol=1e-6)
    assert np.abs(moved[0]).max() > 1e-3


def test_several_passes_are_updates_one_after_the_other():
    """Deltas are those of the table's own optimizer on the oracle's gradients, pass by pass."""
    model, group, clock = MODELS["one clock"], 32, 25
    examples = examples_of(3, model, n=24, fresh=8)  # 2 passes of 8 fresh and 8 replays
    learner, _ = learner_of(model, group, passes=2, update_events=0)
    step = learner.learn(examples, clock)
    vectors, state = examples.items.vectors.astype(np.float64), np.full(examples.items.vectors.shape, 0.1)
    towers = DenseParameters(model).to_towers(np.zeros(0, np.float32))
    for number in range(2):
        rows = np.concatenate([np.arange(8), np.arange(8 + 8 * number, 16 + 8 * number)])
        columns = ("target", "recent", "length", "is_row", "is_column", "weight", "seen_start", "seen_stop", "user")
        part = dataclasses.replace(
            examples,
            items=dataclasses.replace(examples.items, vectors=vectors.astype(np.float32)),
            **{name: getattr(examples, name)[rows] for name in columns},
        )
        gradients = oracle(part, model, group, clock, towers)[1]
        state += gradients**2
        vectors -= 0.05 * gradients / (np.sqrt(state) + 1e-7)
    want = np.concatenate([vectors - examples.items.vectors, state - 0.1], axis=1)
    np.testing.assert_allclose(step.item_gradients, want, rtol=2e-3, atol=2e-5)
    assert step.item_gradients.shape == (len(examples.item_keys), 2 * model.dim)


def test_a_replay_forgets_some_of_its_history_and_a_fresh_event_none():
    model = MODELS["history"]
    examples = examples_of(0, model)
    learner, _ = learner_of(model, 32, np.random.default_rng(0), replay_drop=0.5)
    seen = []
    pool = learner_module.pool_histories

    def spy(vectors, slots, *rest):
        seen.append(slots.copy())
        pool(vectors, slots, *rest)

    learner_module.pool_histories = spy
    try:
        for _ in range(40):
            learner.learn(examples, 10)
    finally:
        learner_module.pool_histories = pool
    kept = np.array(seen)[:, : len(examples.target)] >= 0
    there = examples.recent >= 0
    assert (kept[:, : examples.fresh] == there[: examples.fresh]).all()
    share = kept[:, examples.fresh :].mean(axis=0)[there[examples.fresh :]]
    assert share.mean() == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("name", MODELS)
def test_padding_changes_nothing(name):
    model = MODELS[name]
    examples = examples_of(4, model)
    exact, dense = learner_of(model, 21)
    padded, padded_dense = learner_of(model, 64)
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
    learner, dense = learner_of(model, 8)
    before, examples = dense._local.copy(), examples_of(2, model)
    rows = examples.items if where == "item" else examples.users
    used = examples.target[examples.is_row][0] if where == "item" else examples.user[examples.is_row][0]
    rows.vectors[used] = bad
    assert not learner.learn(examples, 10).finite
    assert (dense._local == before).all()
    assert learner.learn(examples_of(3, model), 10).finite


def test_a_bad_vector_that_only_a_cold_user_meets_is_noticed():
    """Masked in the only row it could reach, an item's NaN still gets into that user's own gradient."""
    model = ModelSettings(dim=4, history_length=1, user_id_vector=True)
    rng = np.random.default_rng(0)
    items = rows_of(rng, 2, 4)
    items.vectors[1] = np.nan
    examples = Examples(
        fresh=2, items=items, item_keys=np.arange(2, dtype=np.uint64), target=np.array([0, 1]),
        recent=np.full((2, 1), -1), is_row=np.array([True, False]), is_column=np.array([True, False]),
        label=np.ones(2, np.float32),
        weight=np.ones(2, np.float32), seen_start=np.array([0, 1]), seen_stop=np.array([1, 1]), seen=np.array([1]),
        length=np.zeros(2, np.int64), positive_weight=1.0,
        user_keys=np.zeros(1, np.uint64), users=rows_of(rng, 1, 4), user=np.zeros(2, np.int64),
    )  # fmt: skip
    step = learner_of(model, 2)[0].learn(examples, 10)
    assert np.isfinite(step.item_gradients).all()
    assert not np.isfinite(step.user_gradients).all()
    assert not step.finite


@pytest.mark.parametrize("name", ["dense", "dense, user"])
def test_the_trained_towers_are_the_served_ones(name):
    """No training-serving skew: TensorFlow's layers and NumPy's give the same outputs from the same flat vector."""
    import tensorflow as tf

    from trainer.layered_step import forward as tensor_forward

    model = MODELS[name]
    _, dense = learner_of(model, 8)
    towers = dense._parameters.to_towers(dense._local.copy())
    user, item = dense.towers(tf.constant(dense._local))
    x = np.random.default_rng(0).normal(size=(9, model.dim)).astype(np.float32)
    for layers, served in ((user, towers.user), (item, towers.item)):
        np.testing.assert_allclose(
            tensor_forward(layers, tf.constant(x)).numpy(), forward(served, x), rtol=1e-5, atol=1e-6
        )
    assert not np.allclose(forward(towers.user, x), forward(towers.item, x))
    assert towers.user[-1][0].shape[1] == model.output_dim
