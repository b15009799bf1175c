"""Explanations: parts add up to the score that items are ranked by, and each is what leaving it out would take."""

from __future__ import annotations

import numpy as np
import pytest

from embedding_store.explaining import explain
from embedding_store.ranking import recent_items
from embedding_store.towers import forward, pull_back
from tests.embedding_store.test_ranking import ITEMS, MODELS, NONE, world


@pytest.mark.parametrize("name", MODELS)
def test_parts_add_up_to_the_score_by_which_the_item_is_ranked(name):
    model = MODELS[name]
    _, ranker = world(model)
    personal = 0
    for user in range(1, 10):
        users = ranker.users(np.array([user], np.uint64))
        for item in range(0, ITEMS, 7):
            why = explain(model, ranker, user, item)
            vector = users.vectors[0] if users.warm[0] else None
            prior = float(users.prior[0]) if users.warm[0] else None
            ranked = ranker.recommend(vector, exclude=NONE, k=ITEMS, prior=prior)
            expected = float(ranked.scores[ranked.keys.tolist().index(item)])
            assert why.score == pytest.approx(expected, abs=1e-5)
            assert why.clocks.sum() + why.own + why.bias + why.popularity == pytest.approx(why.score, abs=1e-5)
            assert why.contributions.sum() == pytest.approx(why.clocks.sum(), abs=1e-5)
            assert (np.diff(why.contributions) <= 0).all()
            assert why.personal == bool(users.warm[0])
            seen = users.seen_keys.tolist()
            assert why.seen == (item in seen)
            others = [
                score
                for key, score in zip(ranked.keys.tolist(), ranked.scores.tolist(), strict=True)
                if key not in (item, *seen)
            ]
            mine = pytest.approx(expected, abs=1e-7)
            assert why.rank == 1 + sum(o > expected and o != mine for o in others) + sum(o == mine for o in others) / 2
            personal += why.personal
    assert personal > 20


@pytest.mark.parametrize("name", ["plain", "gates"])
def test_contributions_are_products_with_the_rows_of_the_history(name):
    """Without layers the dot product is linear in the rows: an addition is what a row of zeros in its place takes."""
    model = MODELS[name]
    store, ranker = world(model)
    why = explain(model, ranker, 8, 4)
    histories = store.histories("history", np.array([8], np.uint64))
    recent, lengths = recent_items(histories, model.history_length)
    places = recent[0, : lengths[0]].tolist()
    assert set(why.keys.tolist()) == {key for key in places if key < ITEMS}
    assert why.times.tolist() == [places.count(key) for key in why.keys.tolist()]
    target = ranker.mirror.items(np.array([4], np.uint64)).vectors[0]
    rows, _ = ranker.mirror.raw_vectors(why.keys)
    share = model.dim // len(model.clocks)
    gates, length = ranker.mirror.gates, len(places)
    here = [k for k in range(length) if places[k] < ITEMS]
    for key, row, contribution in zip(why.keys.tolist(), rows, why.contributions.tolist(), strict=True):
        expected = 0.0
        for v in range(len(model.clocks)):
            weights = np.exp(gates.logits[v, here].astype(np.float64))
            weights *= gates.scales[v, int(np.log2(len(histories.entries) + 1))] / weights.sum()
            part = slice(v * share, (v + 1) * share)
            mine = sum(w for k, w in zip(here, weights, strict=True) if places[k] == key)
            expected += mine * float(row[part].astype(np.float64) @ target[part])
        assert contribution == pytest.approx(expected, abs=1e-5)


def test_the_gradient_through_layers_is_the_one_of_differences():
    rng = np.random.default_rng(3)
    widths = [(5, 9), (9, 7), (7, 4)]
    layers = tuple((rng.normal(size=shape), rng.normal(size=shape[1])) for shape in widths)
    x, gradient, step = rng.normal(size=(3, 5)), rng.normal(size=(3, 4)), 1e-6
    found = pull_back(layers, x, gradient)
    for j in range(5):
        moved = np.zeros(5)
        moved[j] = step
        difference = (forward(layers, x + moved) - forward(layers, x - moved)) / (2 * step)
        np.testing.assert_allclose(found[:, j], (difference * gradient).sum(axis=1), atol=1e-6)
    assert pull_back((), x, gradient) is gradient


def test_an_item_that_nobody_liked_is_never_recommended_and_an_unknown_one_is_not_there():
    model = MODELS["gates"]
    _, ranker = world(model)
    unnamed = explain(model, ranker, 8, ITEMS - 1)
    assert (unnamed.score, unnamed.rank, bool(unnamed.item.found[0])) == (-np.inf, np.inf, True)
    assert not explain(model, ranker, 8, 999).item.found[0]
    cold = explain(model, ranker, 77, 4)
    assert (cold.personal, len(cold.clocks), len(cold.keys)) == (False, 0, 0)
    assert cold.score == cold.popularity
