"""What came after: counted from the store, ranked by in every way of asking, explained, and kept still by a copy."""

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
from embedding_store.transitions import (
    LEAST,
    LIFT,
    NEAR_MS,
    REACH,
    RECENCY,
    SMALL,
    FrozenTransitions,
    StoredTransitions,
    evidence,
    newest_of,
)
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
"""What came after most items, oldest first; some of it, and some of the keys, are no items."""


def weight(k):
    """Of the k-th of them: every other came directly after."""
    return 1.0 if k % 2 == 0 else 0.25


def walked(model):
    store, ranker = world(model)
    keys = list(NEXT)
    appends = [(i, k, k, item, 0, weight(k)) for i, key in enumerate(keys) for k, item in enumerate(NEXT[key])]
    store.apply("next", flush_of(keys, 0, 500, appends=appends, counts=[len(NEXT[key]) for key in keys]))
    return store, ranker


def slow_shares(entries, model):
    """{item: (direct, near)} by a user's entries, oldest first."""
    found, newest = {}, entries[::-1][: min(REACH, model.history_length)]
    for k, (time_ms, item) in enumerate(newest):
        near = RECENCY**k / (1 + ((newest[0][0] - time_ms) / NEAR_MS) ** 2)
        if near < LEAST or item in [other for _, other in newest[:k]]:
            continue
        kept = [(after, weight(n)) for n, after in enumerate(NEXT.get(item, []))][-model.successors :]
        firsts = [after for after, w in kept if w == 1]
        for after in {after for after, _ in kept}:
            direct, share = found.get(after, (0.0, 0.0))
            share += near * sum(w for other, w in kept if other == after) / sum(w for _, w in kept)
            found[after] = (direct + (firsts.count(after) / len(firsts) if k == 0 else 0), share)
    return found


def slow_boost(store, model, user):
    entries = store.histories("history", np.array([user], np.uint64)).entries[["time_ms", "item"]].tolist()
    parameters = DenseParameters(model)
    gates = parameters.to_towers(parameters.read(store)).gates
    worth = np.maximum(0.0, gates.transition[:2, bucket_of(np.array([len(entries)]))[0]])
    found = {}
    for item, shares in slow_shares(entries, model).items():
        row = store.lookup("item", np.array([item], np.uint64))
        liked = row.popularity[0] * 0.5 ** ((500 - row.last_seen[0]) / model.popularity_half_life)
        enough = max(SMALL, LIFT * max(model.popularity_floor, liked) * np.log(2) / model.popularity_half_life)
        found[item] = float(worth @ np.log1p(np.array(shares) / enough))
    return found


def as_dict(boosts, i=0):
    part = boosts.at(i)
    return dict(zip(part.keys.tolist(), part.values.tolist(), strict=True))


def of(followers, i):
    part = slice(followers.offsets[i], followers.offsets[i + 1])
    shares = zip(followers.direct[part].tolist(), followers.near[part].tolist(), strict=True)
    return dict(zip(followers.keys[part].tolist(), shares, strict=True))


def test_evidence_is_a_share_over_what_popularity_explains():
    found = evidence(
        np.array([0.5, 0.5, 0.0], np.float32), np.array([0.1, 0.2, 0.3], np.float32),
        np.log(np.array([1e-3, 40, 1e9])).astype(np.float32), 1000.0,
    )  # fmt: skip
    share = 40 * np.log(2) / 1000
    expected = np.log1p([[100, 0.5 / 30 / share, 0], [20, 0.2 / 30 / share, 0]])
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_the_newest_count_by_place_and_age():
    entries = np.zeros(9, ENTRY)
    entries["item"] = [4, 5, 6, 5, 1, 2, 3, 9, 8]
    entries["time_ms"] = [0, 10**9, 10**9, 10**9 + NEAR_MS, 1, 1, 1, 1, 1]
    zeros = np.zeros(4, np.int64)
    recent, near = newest_of(Histories(np.array([0, 4, 4, 9, 9]), entries, zeros > 0, zeros, zeros, zeros), 4)
    assert recent.tolist() == [[5, 6, 5, 4], [0] * 4, [8, 9, 3, 2], [0] * 4]
    expected = [[1, RECENCY / 2, 0, 0], [0] * 4, [RECENCY**k for k in range(4)], [0] * 4]
    np.testing.assert_allclose(near, expected, rtol=1e-6)


def test_transitions_are_those_of_the_store_and_a_copy_stands_still():
    model = MODELS["plain"]
    store, _ = walked(model)
    recent = np.array([[4, 10, 11], [5, 4, 4], [4, 4, 4], [999, 2, 0], [10, 0, 0]], np.uint64)
    near = np.array([[1, 0.5, 0.25], [1, 0, 0], [1, 0, 0], [1, 0.5, 0], [0, 0, 0]], np.float32)
    live, still = StoredTransitions(store), FrozenTransitions(store)
    before = [of(live.after(recent, near), i) for i in range(5)]
    assert [len(b) for b in before] == [
        len({*NEXT[4], *NEXT[10], *NEXT[11]}),
        0,
        len(set(NEXT[4])),
        len(set(NEXT[2])),
        0,
    ]
    assert [of(still.after(recent, near), i) for i in range(5)] == before
    taken = live.after(recent, near).take(np.array([2, 4, 0, 2]))
    assert [of(taken, i) for i in range(4)] == [before[i] for i in (2, 4, 0, 2)]
    store.apply("next", flush_of([4], 500, 501, appends=[(0, 99, 99, 33, 0, 1.0)], counts=[1]))
    assert 33 in of(live.after(recent, near), 0)
    assert of(still.after(recent, near), 0) == before[0]
    empty = MemoryStore()
    empty.create(model.tables()["next"])
    for source in (StoredTransitions(empty), FrozenTransitions(empty)):
        assert not len(source.after(recent, near).keys)


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
    assert DenseParameters(with_them).size == DenseParameters(model).size + 3 * BUCKETS
