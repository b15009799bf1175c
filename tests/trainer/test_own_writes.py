"""Read your writes: rows with the pending laid over them are what the store answers after the flush."""

import numpy as np
import pytest

from embedding_store.memory import MemoryStore
from embedding_store.model import ModelSettings
from embedding_store.regularization import L2
from embedding_store.spec import Adagrad, Adam, RowwiseAdagrad, Sgd
from ingest.columns import Partition
from tests.trainer.small import TOPIC, Click, batch_of, declare
from trainer.learner import Step
from trainer.own_writes import OwnWrites
from trainer.pending import Pending

KEYS = np.array([101, 102, 103, 104, 105, 999], np.uint64)
COLUMNS = ("vectors", "found", "count", "last_seen", "gap", "popularity", "clock")


def step_on(keys, dim, seed):
    rng = np.random.default_rng(seed)
    none = np.zeros(0, np.uint64)
    gradients = rng.normal(size=(len(keys), dim)).astype(np.float32)
    return Step(np.array(keys, np.uint64), gradients, none, np.zeros((0, dim), np.float32), 1.0, 3, True)


def model_of(**changes):
    return ModelSettings(dim=4, history_length=3, seen_length=8, shards=3, step_events=2).model_copy(update=changes)


def learn(pending, dim, start):
    """Three micro-batches of two events each; items come again, 105 has a gradient alone."""
    for n in range(3):
        at = start + 2 * n
        clicks = [Click(1000 + at + i, 0, (at + i) << 16, 7, 101 + (n + i) % 3) for i in range(2)]
        pending.add(batch_of(clicks, at, at + 2), step_on([c.item for c in clicks] + [105], dim, at))


def apply_all(store, pending, start):
    flush = pending.flush("item", 0, {Partition(TOPIC, 0): start}, 5)
    store.apply("item", flush)


@pytest.mark.parametrize(
    ("changes", "exact"),
    [
        ({"optimizer": Adagrad()}, True),
        ({"optimizer": RowwiseAdagrad()}, True),
        ({"optimizer": Adam()}, True),
        ({"optimizer": Sgd(), "clip_norm": 0.5}, True),
        ({"optimizer": Sgd(learning_rate=0.1), "regularization": L2(l2=0.5)}, False),
    ],
)
def test_pending_rows_are_what_the_store_answers_after_the_flush(changes, exact):
    model = model_of(**changes)
    store, pending = MemoryStore(), Pending(model.dim)
    declare(store, model)
    learn(pending, model.dim, 0)
    apply_all(store, pending, 0)
    pending.clear()
    learn(pending, model.dim, 6)
    before = store.lookup("item", KEYS)
    own = OwnWrites(store, pending).lookup("item", KEYS)
    assert (store.lookup("item", KEYS).vectors == before.vectors).all()  # nothing was written
    apply_all(store, pending, 6)
    after = store.lookup("item", KEYS)
    for name in COLUMNS:
        got, want = getattr(own, name), getattr(after, name)
        if exact or name != "vectors":
            assert got.tobytes() == want.tobytes(), name
        else:
            np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-7)
    assert (own.vectors[0] != before.vectors[0]).any()


def test_without_pending_it_is_the_store():
    model = model_of()
    store, pending = MemoryStore(), Pending(model.dim)
    declare(store, model)
    own = OwnWrites(store, pending)
    assert (own.lookup("item", KEYS).vectors == store.lookup("item", KEYS).vectors).all()
    learn(pending, model.dim, 0)
    seen = own.lookup("item", KEYS).vectors
    assert (seen != store.lookup("item", KEYS).vectors).any()
    pending.clear()
    assert (own.lookup("item", KEYS).vectors == store.lookup("item", KEYS).vectors).all()


def test_a_key_that_is_not_admitted_yet_stays_so():
    model = model_of(item_admit_after=5)
    store, pending = MemoryStore(), Pending(model.dim)
    declare(store, model)
    learn(pending, model.dim, 0)
    own = OwnWrites(store, pending).lookup("item", KEYS)
    assert not own.found.any()
    assert (own.vectors == store.lookup("item", KEYS).vectors).all()
