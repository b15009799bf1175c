"""What transitions are worth: its gradient by differences of the loss, and what can't be learned."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from embedding_store.errors import SpecError
from embedding_store.memory import MemoryStore
from embedding_store.model import ModelSettings
from embedding_store.towers import DenseParameters, bucket_of, item_outputs, user_outputs
from embedding_store.transitions import LIFT, SMALL
from ingest.listed import ListedSource
from ingest.settings import IngestSettings
from tests.trainer.test_learner import examples_of
from trainer.examples import After
from trainer.metrics import Metrics
from trainer.settings import TrainerSettings
from trainer.transitions import worth_gradients
from trainer.worker import Worker

MODELS = {
    "plain": ModelSettings(dim=4, history_length=3, seen_length=8, successors=5),
    "layers": ModelSettings(dim=4, history_length=3, seen_length=8, successors=5, dense_layers=(6, 3)),
    "cosine": ModelSettings(dim=4, history_length=3, seen_length=8, successors=5, similarity="cosine", temperature=0.3),
}
FRESH, N, GROUP, ITEMS = 8, 21, 7, 13
HALF_LIFE = 1000


def loss(
    model, towers, transition, examples, order, rows, users, items, mask, popularity, bias, weight, item_popularity
):
    """The formula at the top of `trainer.transitions`, row by row in float64."""
    u = user_outputs(model, towers.user, users).astype(np.float64)
    v = item_outputs(model, towers.item, items).astype(np.float64)
    total, after = 0.0, examples.after
    for i in np.flatnonzero(rows).tolist():
        e, group = int(order[i]), slice(i // GROUP * GROUP, i // GROUP * GROUP + GROUP)
        known = range(after.bounds[e], after.bounds[e + 1])
        if not known:
            continue
        said = np.zeros((2, ITEMS))
        shares = np.stack([after.direct[known], after.near[known]])
        enough = np.maximum(LIFT * np.exp(item_popularity) * np.log(2) / HALF_LIFE, SMALL)[after.items[known]]
        said[:, after.items[known]] = np.log1p(shares / enough)
        b = bucket_of(examples.length[e : e + 1])[0]
        scores = v[group] @ u[i] + towers.gates.prior[b] * popularity[group]
        scores += np.maximum(0.0, transition[:2, b]) @ said[:, examples.target[order[group]]]
        logits = np.where(mask[i], transition[2, b] * scores + bias[group], -np.inf)
        total += weight[i] * (np.log(np.exp(logits).sum()) - logits[i % GROUP])
    return total


@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_of_the_formula(name):
    model, rng = MODELS[name], np.random.default_rng(4)
    lengths = np.array([3, 0, 2, 1, 4, 0, 2, 1])
    bounds = np.concatenate([[0], np.cumsum(lengths)])
    numbers = np.concatenate([rng.permutation(ITEMS)[:n] for n in lengths])
    shares = rng.uniform(0, 0.5, (2, len(numbers))).astype(np.float32)
    after = After(bounds, numbers, *shares)
    examples = replace(examples_of(2, model, N, FRESH, ITEMS), after=after, length=2 ** rng.integers(0, 8, N))
    parameters = DenseParameters(model)
    flat = parameters.initial() + rng.normal(0, 0.2, parameters.size).astype(np.float32)
    towers = parameters.to_towers(flat.astype(np.float32))
    order = rng.permutation(N)
    rows = (order < FRESH) & (rng.random(N) < 0.8)
    mask = rng.random((N, GROUP)) < 0.7
    mask[np.arange(N), np.arange(N) % GROUP] = True
    arrays = [rng.normal(size=(N, 4)), rng.normal(size=(N, 4)), rng.normal(size=N), rng.normal(size=N)]
    users, items, popularity, bias = (array.astype(np.float32) for array in arrays)
    weight = rng.uniform(0.1, 2, N).astype(np.float32)
    item_popularity = rng.normal(3, 2, ITEMS).astype(np.float32)  # some common enough to be no news, some not
    given = (examples, order, rows, users, items, mask, popularity, bias, weight, item_popularity)
    found, transition, h = worth_gradients(model, towers, *given), towers.gates.transition.astype(np.float64), 1e-5
    expected = np.zeros_like(transition)
    for at in np.ndindex(*transition.shape):
        more, less = transition.copy(), transition.copy()
        more[at], less[at] = more[at] + h, less[at] - h
        expected[at] = (loss(model, towers, more, *given) - loss(model, towers, less, *given)) / (2 * h)
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert (np.count_nonzero(expected, axis=1) > 1).all()


def test_labels_are_not_predicted_from_transitions():
    settings = TrainerSettings.model_validate({"loss": "bce", "replay": 0, "label_smoothing": 0.0})
    with pytest.raises(SpecError, match=r"successors = 5 with loss = 'bce'.*set \[model\] successors = 0"):
        Worker(MemoryStore(), ListedSource({}, IngestSettings()), MODELS["plain"], settings, Metrics())
