"""What came next: counted from the store, ranked by in every way of asking, explained, and kept still by a copy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from embedding_store.contract import ENTRY, Histories
from embedding_store.explaining import explain
from embedding_store.memory import MemoryStore
from embedding_store.model import ModelSettings
from embedding_store.ranking import Arrivals, Ranker
from embedding_store.towers import BUCKETS, DenseParameters, bucket_of
from embedding_store.transitions import SMALL, FrozenTransitions, StoredTransitions, evidence
from tests.embedding_store.test_ranking import ITEMS, NONE, world
from tests.flushes import flush_of

MODELS = {
    "plain": ModelSettings(dim=6, history_length=3, seen_length=5, successors=8),
    "fixed": ModelSettings(dim=6, history_length=3, seen_length=5, successors=8, learned_gates=False),
    "layers": ModelSettings(dim=6, history_length=3, seen_length=5, successors=8, dense_layers=(9, 6)),
    "cosine": ModelSettings(dim=6, history_length=3, seen_length=5, successors=8, similarity="cosine"),
}
NEXT = {
    item: [(3 * item + k % 4) % (ITEMS + 4) for k in range(1 + item % 9)] for item in range(ITEMS + 4) if item % 8 != 5
}
"""What came next after most items, oldest first; some of it, and some of the keys, are no items."""


def walked(model):
    store, ranker = world(model)
    keys = list(NEXT)
    appends = [(i, k, k, item, 0, 1.0) for i, key in enumerate(keys) for k, item in enumerate(NEXT[key])]
    store.apply("next", flush_of(keys, 0, 500, appends=appends, counts=[len(NEXT[key]) for key in keys]))
    return store, ranker


def slow_evidence(newest, model):
    kept = NEXT.get(newest, [])[-model.successors :]
    return {item: np.log1p(kept.count(item) / len(kept) / SMALL) for item in set(kept)}


def slow_boost(store, model, user):
    entries = store.histories("history", np.array([user], np.uint64)).entries["item"].tolist()
    if not entries:
        return {}
    parameters = DenseParameters(model)
    gates = parameters.to_towers(parameters.read(store)).gates
    worth = max(0.0, float(gates.transition[0, bucket_of(np.array([len(entries)]))[0]]))
    return {item: worth * value for item, value in slow_evidence(entries[-1], model).items()}


def as_dict(boosts, i=0):
    part = boosts.at(i)
    return dict(zip(part.keys.tolist(), part.values.tolist(), strict=True))


def test_evidence_is_the_log_of_shares():
    entries = np.zeros(6, ENTRY)
    entries["item"] = [5, 2**63, 5, 7, 9, 9]
    zeros = np.zeros(4, np.int64)
    found = evidence(Histories(np.array([0, 3, 3, 4, 6]), entries, zeros > 0, zeros, zeros, zeros))
    assert as_dict(found, 0) == pytest.approx({5: np.log1p(2 / 3 / SMALL), 2**63: np.log1p(1 / 3 / SMALL)})
    assert as_dict(found, 1) == {}
    assert as_dict(found, 2) == as_dict(found, 2) == pytest.approx({7: np.log1p(1 / SMALL)})
    assert as_dict(found.take(np.array([3, 1, 3])), 2) == as_dict(found, 3) == pytest.approx({9: np.log1p(1 / SMALL)})
    assert as_dict(found.weighted(np.array([0.5, 1, 1, 2], np.float32)), 3) == pytest.approx({9: 2 * np.log1p(50)})


def test_transitions_are_those_of_the_store_and_a_copy_stands_still():
    store, _ = walked(MODELS["plain"])
    newest, known = np.array([4, 5, 4, 999, 10], np.uint64), np.array([1, 3, 2, 1, 0])
    live, still = StoredTransitions(store), FrozenTransitions(store)
    before = [slow_evidence(4, MODELS["plain"]), {}, slow_evidence(4, MODELS["plain"]), {}, {}]
    for source in (live, still):
        found = source.after(newest, known)
        assert [as_dict(found, i) for i in range(5)] == [pytest.approx(b) for b in before]
    store.apply("next", flush_of([4], 500, 501, appends=[(0, 99, 99, 33, 0, 1.0)], counts=[1]))
    assert 33 in as_dict(live.after(newest, known))
    assert as_dict(still.after(newest, known)) == pytest.approx(before[0])
    empty = MemoryStore()
    empty.create(MODELS["plain"].tables()["next"])
    assert as_dict(FrozenTransitions(empty).after(newest, known)) == {}


@pytest.mark.parametrize("name", MODELS)
def test_every_way_of_asking_adds_the_same(name):
    model = MODELS[name]
    store, ranker = walked(model)
    keys = np.arange(1, 10, dtype=np.uint64)
    users = ranker.users(keys)
    everything, raised = np.arange(ITEMS, dtype=np.uint64), 0
    excludes = [users.seen_keys[a:b] for a, b in itertools.pairwise(users.seen_offsets)]
    some = np.array([1, 4, 9, 15, 16, 999, 30], np.uint64)
    warm = np.flatnonzero(users.warm)
    many = ranker.recommend_many(
        users.vectors[warm], users.prior[warm], [excludes[i] for i in warm], [6] * len(warm),
        [users.boost(int(i)) for i in warm],
    )  # fmt: skip
    for at, i in enumerate(warm.tolist()):
        vector, prior, boost = users.vectors[i], float(users.prior[i]), users.boost(i)
        expected = slow_boost(store, model, int(keys[i]))
        assert as_dict(boost) == pytest.approx(expected)
        base = ranker.score(vector, everything, prior=prior).astype(np.float64)
        total = base + [expected.get(item, 0.0) for item in range(ITEMS)]
        raised += sum(np.isfinite(base[item]) for item in expected if item < ITEMS)
        np.testing.assert_allclose(ranker.score(vector, everything, prior=prior, boost=boost), total, atol=1e-5)
        assert as_dict(boost) == as_dict(users.boosts.at(i))
        for only in (None, some):
            ranked = ranker.recommend(vector, exclude=excludes[i], k=6, only=only, prior=prior, boost=boost)
            among = set(range(ITEMS) if only is None else some.tolist()) - set(excludes[i].tolist())
            best = sorted((k for k in among if k < ITEMS and np.isfinite(total[k])), key=lambda k: -total[k])[:6]
            assert ranked.keys.tolist() == best
            np.testing.assert_allclose(ranked.scores, total[best], atol=1e-5)
            if only is None:
                assert many[at].keys.tolist() == best
                np.testing.assert_allclose(many[at].scores, total[best], atol=1e-5)
                for place, item in enumerate(best):
                    assert place + 1 == ranker.rank(vector, exclude=excludes[i], target=item, prior=prior, boost=boost)
    assert raised > 5, "too few to tell"


def test_ranks_of_many_are_those_of_each():
    _, ranker = walked(MODELS["plain"])
    users, targets = ranker.users(np.arange(1, 9, dtype=np.uint64)), np.arange(3, 11, dtype=np.uint64)
    none = Arrivals(np.zeros(8, np.int64), NONE, np.zeros(0, np.float32))
    ranks, _ = ranker.ranks(
        users.vectors, users.prior, users.warm, users.seen_offsets, users.seen_keys, targets, none, users.boosts
    )
    moved = 0
    for i, target in enumerate(targets.tolist()):
        seen = users.seen_keys[users.seen_offsets[i] : users.seen_offsets[i + 1]]
        if target in seen.tolist():
            assert np.isnan(ranks[i])
            continue
        vector = users.vectors[i] if users.warm[i] else None
        prior = float(users.prior[i])
        assert ranks[i] == ranker.rank(vector, exclude=seen, target=target, prior=prior, boost=users.boost(i))
        moved += ranks[i] != ranker.rank(vector, exclude=seen, target=target, prior=prior)
    assert moved > 1


@pytest.mark.parametrize("name", MODELS)
def test_an_explanation_has_them_as_a_part(name):
    model = MODELS[name]
    store, ranker = walked(model)
    told = 0
    for user, item in itertools.product(range(1, 10), range(0, ITEMS - 2, 5)):
        why = explain(model, ranker, user, item)
        expected = slow_boost(store, model, user).get(item, 0.0) if why.personal else 0.0
        assert why.transition == pytest.approx(expected, abs=1e-6)
        parts = why.clocks.sum() + why.own + why.bias + why.popularity + why.transition
        assert parts == pytest.approx(why.score, abs=1e-5)
        told += why.transition > 0
    assert told


def test_a_model_without_transitions_reads_none_and_has_no_gate_for_them():
    model = ModelSettings(dim=6, history_length=3, seen_length=5)
    store, ranker = world(model)
    assert "next" not in model.tables()
    assert Ranker(store, model, ranker.mirror).users(np.array([3], np.uint64)).boosts is None
    with_them = model.model_copy(update={"successors": 4})
    assert DenseParameters(with_them).size == DenseParameters(model).size + 2 * BUCKETS
