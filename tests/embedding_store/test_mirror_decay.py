"""The mirror of a regularized table serves what the store would answer, also when only the clock has moved."""

import numpy as np
import pytest

from embedding_store.memory import MemoryStore
from embedding_store.mirror import ItemMirror
from embedding_store.model import ModelSettings
from embedding_store.regularization import L1, L2, ElasticNet
from embedding_store.schedules import InverseTime
from embedding_store.spec import Sgd
from embedding_store.towers import DenseParameters, forward
from tests.coarse_rows import assert_in_step
from tests.flushes import SOURCE, begin, flush_of

LEARNING = {
    "optimizer": Sgd(learning_rate=0.2),
    "schedule": InverseTime(decay=0.05),
    "step_events": 10,
    "initial_std": 0.5,
}
PLAIN = ModelSettings(dim=4, shards=3, regularization=L2(l2=0.3), learned_gates=False, **LEARNING)
MODELS = {
    "l2": PLAIN,
    "l1": ModelSettings(dim=4, shards=1, regularization=L1(l1=0.02), **LEARNING),
    "dense": ModelSettings(
        dim=4, shards=2, regularization=ElasticNet(l1=0.01, l2=0.2), dense_layers=(6, 3), **LEARNING
    ),
}


def opened(model):
    store = MemoryStore()
    for spec in model.tables().values():
        begin(store, spec)
    return store


def same(store, model, mirror, keys):
    asked = np.array(keys, np.uint64)
    rows = store.lookup("item", asked)
    assert_in_step(mirror)
    raw, found = mirror.raw_vectors(asked)
    assert (found == rows.found).all()
    np.testing.assert_allclose(raw[found], rows.vectors[found], rtol=3e-7, atol=1e-9)
    outputs = rows.vectors
    if model.dense_layers:
        parameters = DenseParameters(model)
        outputs = forward(parameters.to_towers(parameters.read(store)).item, outputs)
    np.testing.assert_allclose(mirror.items(asked).vectors[found], outputs[found], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_the_mirror_is_the_store_after_any_feed(model):
    store, rng = opened(model), np.random.default_rng(0)
    often, seldom = ItemMirror(store, model), ItemMirror(store, model)
    for at in range(40):
        keys = rng.choice(50, int(rng.integers(0, 6)), replace=False).tolist()
        events = int(rng.integers(1, 40))
        forget = [int(rng.integers(50))] if at % 7 == 6 else []
        gradients = rng.normal(size=(len(keys), 4))
        store.apply("item", flush_of(keys, at, at + 1, gradients=gradients, events=events, forget=forget))
        often.refresh()
        same(store, model, often, range(50))
        if at % 13 == 12:
            seldom.refresh()
            same(store, model, seldom, range(50))
    fresh = ItemMirror(store, model)
    fresh.refresh()
    same(store, model, fresh, range(50))


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_rows_decay_when_the_clock_moves_and_no_row_does(model):
    store = opened(model)
    mirror = ItemMirror(store, model)
    keys = list(range(3000))  # more than the first capacity
    store.apply("item", flush_of(keys, 0, 10, gradients=np.ones((3000, 4))))
    mirror.refresh()
    before = mirror.raw_vectors(np.array(keys, np.uint64))[0]
    store.apply("item", flush_of([], 10, 500))
    assert mirror.refresh() == 0
    same(store, model, mirror, keys)
    after = mirror.raw_vectors(np.array(keys, np.uint64))[0]
    assert (np.abs(after) < np.abs(before)).mean() > 0.99
    store.apply("item", flush_of([], 500, 505))  # inside a step: nothing moves
    mirror.refresh()
    assert (mirror.raw_vectors(np.array(keys, np.uint64))[0] == after).all()


def test_decay_that_may_take_little_time_is_put_off_and_rows_of_the_feed_are_not():
    store = opened(PLAIN)
    store.apply("item", flush_of([1, 2, 3], 0, 1, gradients=np.ones((3, 4)), events=5))
    mirror = ItemMirror(store, PLAIN, decay_share=1e-9)  # one pass, and for hours no other
    mirror.refresh()
    store.apply("item", flush_of([1], 1, 2, gradients=np.ones((1, 4)), events=20))
    mirror.refresh()
    same(store, PLAIN, mirror, [1, 2, 3])
    before, _ = mirror.raw_vectors(np.array([2, 3], np.uint64))
    store.apply("item", flush_of([1], 2, 3, gradients=np.ones((1, 4)), events=20))
    mirror.refresh()
    same(store, PLAIN, mirror, [1])
    np.testing.assert_array_equal(mirror.raw_vectors(np.array([2, 3], np.uint64))[0], before)
    assert not mirror.wait(0.01)


def test_decay_that_was_put_off_is_made_up_for_without_another_change():
    store = opened(PLAIN)
    store.apply("item", flush_of([1, 2, 3], 0, 1, gradients=np.ones((3, 4)), events=5))
    mirror = ItemMirror(store, PLAIN, decay_share=0.01)
    mirror.refresh()
    for at in range(1, 4):
        store.apply("item", flush_of([1], at, at + 1, gradients=np.ones((1, 4)), events=20))
        mirror.refresh()
    while mirror.wait(2.0):
        mirror.refresh()
    same(store, PLAIN, mirror, [1, 2, 3])


def test_steps_too_small_for_float32_add_up():
    """Each step takes off less than float32 can tell: decayed one by one from the last value, nothing would move."""
    model = ModelSettings(dim=2, shards=1, optimizer=Sgd(learning_rate=0.1), regularization=L2(l2=1e-7), step_events=1)
    store = opened(model)
    mirror = ItemMirror(store, model)
    store.apply("item", flush_of([1], 0, 1, gradients=[[-10.0, -10.0]]))
    mirror.refresh()
    first = mirror.raw_vectors(np.array([1], np.uint64))[0][0, 0]
    for i in range(1, 401):
        store.apply("item", flush_of([], i, i + 1, events=1000))
        mirror.refresh()
    now = mirror.raw_vectors(np.array([1], np.uint64))[0][0, 0]
    assert now == pytest.approx(first * np.exp(400_000 * np.log1p(-1e-8)), rel=2e-7)


def test_shards_that_stand_at_different_clocks_decay_by_their_own():
    store = MemoryStore()
    store.create(PLAIN.tables()["item"])
    for shard, offset in enumerate([0, 7, 0]):  # shard 1 is ahead: it has seen what the others will
        store.seek("item", shard, SOURCE, None, offset, "test")
    mirror = ItemMirror(store, PLAIN)
    keys = list(range(40))
    store.apply("item", flush_of(keys, 0, 7, events=70, gradients=np.ones((40, 4))))
    mirror.refresh()
    store.apply("item", flush_of(keys, 7, 8, events=10, gradients=np.ones((40, 4))))
    mirror.refresh()
    assert sorted({s.clock for s in store.status("item")}) == [10, 80]
    store.apply("item", flush_of([], 8, 9, events=100))
    mirror.refresh()
    same(store, PLAIN, mirror, keys)
