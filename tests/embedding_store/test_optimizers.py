"""What an optimizer's declaration may be."""

import numpy as np
import pytest
from pydantic import ValidationError

from embedding_store.memory import MemoryStore
from embedding_store.spec import Adagrad, Adam, RowwiseAdagrad, TableSpec
from tests.flushes import begin, flush_of


@pytest.mark.parametrize("kind", [Adagrad, RowwiseAdagrad, Adam])
def test_an_epsilon_that_float32_rounds_to_nothing_is_refused(kind):
    """A gradient too small to square would be divided by 0."""
    with pytest.raises(ValidationError, match="epsilon"):
        kind(epsilon=1e-50)


@pytest.mark.parametrize(
    "optimizer",
    [
        Adagrad(epsilon=1e-30, initial_accumulator=0),
        RowwiseAdagrad(epsilon=1e-30, initial_accumulator=0),
        Adam(epsilon=1e-30),
    ],
    ids=lambda optimizer: optimizer.kind,
)
def test_the_smallest_epsilon_and_gradients_give_finite_rows(optimizer):
    store = MemoryStore()
    begin(store, TableSpec(name="item", dim=2, shards=1, optimizer=optimizer))
    for start in range(2):
        gradients = [[1e-25, 1e-45], [0, 0]]
        store.apply("item", flush_of([1, 2], start, start + 1, counts=[1, 1], gradients=gradients))
    assert np.isfinite(store.lookup("item", np.array([1, 2], np.uint64)).vectors).all()
