"""One ranking for evaluation and service: answers against a sort in float64, ranks against places in answers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from embedding_store.contract import ENTRY
from embedding_store.memory import MemoryStore
from embedding_store.mirror import ItemMirror
from embedding_store.model import ModelSettings
from embedding_store.ranking import Arrivals, Ranker, recent_items
from embedding_store.towers import DenseParameters, forward
from tests.flushes import SOURCE, flush_of

MODELS = {
    "plain": ModelSettings(dim=6, history_length=3, seen_length=5, shards=2, clocks=(0.8,), learned_gates=False),
    "gates": ModelSettings(dim=6, history_length=3, seen_length=5, clocks=(0.9, 0.6, 0.2)),
    "no popularity": ModelSettings(dim=6, history_length=3, seen_length=5, popularity_weight=0.0),
    "user": ModelSettings(dim=6, history_length=3, seen_length=5, user_id_vector=True),
    "cosine": ModelSettings(dim=6, history_length=3, seen_length=5, similarity="cosine", temperature=0.1),
    "dense, user": ModelSettings(dim=6, history_length=3, seen_length=5, user_id_vector=True, dense_layers=(9, 6)),
}
ITEMS, NONE = 40, np.zeros(0, np.uint64)


def world(model):
    """Items 0 to 39, the last two named by nobody; users 1 to 8 with histories, some items in them missing."""
    store, rng = MemoryStore(), np.random.default_rng(0)
    for spec in model.tables().values():
        store.create(spec)
        for shard in range(spec.shards):
            store.seek(spec.name, shard, SOURCE, None, 0, "first start")
    keys = list(range(ITEMS))
    counts = rng.integers(1, 9, ITEMS)
    positives = counts * (np.arange(ITEMS) < ITEMS - 2)
    gradients = 8 * rng.normal(size=(ITEMS, 6))
    store.apply("item", flush_of(keys, 0, 500, gradients=gradients, counts=counts, positives=positives))
    users = list(range(1, 9))
    appends = [(u, 100 * u + k, k, int(rng.integers(0, ITEMS + 8)), 0, 1.0) for u in range(8) for k in range(u)]
    store.apply("history", flush_of(users, 0, 500, appends=appends, counts=[1] * 8))
    if model.user_id_vector:
        store.apply("user", flush_of(users[4:], 0, 500, gradients=rng.normal(size=(4, 6)), counts=[1] * 4))
    if model.has_dense:
        parameters = DenseParameters(model)
        deltas = parameters.to_rows(rng.normal(0, 0.3, parameters.size).astype(np.float32))
        store.apply("dense", flush_of(parameters.keys.tolist(), 0, 500, gradients=deltas))
    mirror = ItemMirror(store, model)
    mirror.refresh()
    return store, Ranker(store, model, mirror)


def nothing_new(tests):
    return Arrivals(np.zeros(tests, np.int64), NONE, np.zeros(0, np.float32))


def slow_user(store, model, user):
    """(vector, warm) from the contract's calls alone."""
    h = store.histories("history", np.array([user], np.uint64))
    items = h.entries["item"][::-1][: model.history_length]
    rows = store.lookup("item", items.copy())
    parameters = DenseParameters(model)
    gates = parameters.to_towers(parameters.read(store)).gates
    bucket, part = min(int(np.log2(len(h.entries) + 1)), 7), model.dim // len(model.clocks)
    x = np.zeros(model.dim)
    for v in range(len(model.clocks)):
        w = np.exp(gates.logits[v, : len(items)].astype(np.float64)) * rows.found
        if w.sum():
            cut = slice(v * part, (v + 1) * part)
            x[cut] = gates.scales[v, bucket] * (w @ rows.vectors[:, cut].astype(np.float64) / w.sum())
    warm = bool(rows.found.any())
    if model.user_id_vector:
        own = store.lookup("user", np.array([user], np.uint64))
        x, warm = x + own.vectors[0] * own.found[0], warm or bool(own.found[0])
    if model.dense_layers:
        x = forward(parameters.to_towers(parameters.read(store)).user, x[None])[0]
    return scaled(model, x[None])[0] / model.temperature * warm, warm, float(gates.prior[bucket])


def scaled(model, x):
    return x / np.maximum(1e-6, np.linalg.norm(x, axis=1, keepdims=True)) if model.similarity == "cosine" else x


def slow_scores(store, model, vector, weight=None):
    rows = store.lookup("item", np.arange(ITEMS, dtype=np.uint64))
    with np.errstate(divide="ignore"):
        log_p = np.log(rows.popularity / rows.popularity.max())
    if vector is None:
        return log_p
    outputs = rows.vectors.astype(np.float64)
    if model.dense_layers:
        parameters = DenseParameters(model)
        outputs = forward(parameters.to_towers(parameters.read(store)).item, outputs)
    outputs = scaled(model, outputs)
    weight = model.popularity_weight if weight is None else weight
    prior = np.where(np.isneginf(log_p), -np.inf, weight * np.where(np.isneginf(log_p), 0, log_p))
    return outputs @ vector + prior


@pytest.mark.parametrize("name", MODELS)
def test_users_are_their_recent_items_and_their_own_vector(name):
    model = MODELS[name]
    store, ranker = world(model)
    keys = np.array([3, 99, 1, 8, 8], np.uint64)
    users = ranker.users(keys)
    for i, key in enumerate(keys.tolist()):
        vector, warm, prior = slow_user(store, model, key)
        assert users.prior[i] == pytest.approx(prior)
        np.testing.assert_allclose(users.vectors[i], vector, rtol=1e-4, atol=1e-5)
        assert users.warm[i] == warm
        h = store.histories("history", keys[i : i + 1])
        assert users.seen_keys[users.seen_offsets[i] : users.seen_offsets[i + 1]].tolist() == h.entries["item"].tolist()
    assert users.found.tolist() == [True, False, True, True, True]
    assert users.count.tolist() == [1, 0, 1, 1, 1]
    assert not users.vectors[1].any()


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("user", [None, 3, 8])
def test_answers_are_the_head_of_the_sort(name, user):
    model = MODELS[name]
    store, ranker = world(model)
    vector = prior = None
    if user is not None:
        found = ranker.users(np.array([user], np.uint64))
        vector, prior = found.vectors[0], float(found.prior[0])
    scores = slow_scores(store, model, None if vector is None else vector.astype(np.float64), prior)
    order = [k for k in np.argsort(-scores, kind="stable").tolist() if np.isfinite(scores[k])]
    assert len(order) == ITEMS - 2
    exclude = np.array([order[0], order[3], 10_000], np.uint64)
    only = np.array([*order[2:9], 10_001, ITEMS - 1, order[4]], np.uint64)
    without = [k for k in order if k not in exclude]
    for k, kept, options in (
        (5, order, {"exclude": NONE}),
        (100, order, {"exclude": NONE}),
        (7, without, {"exclude": exclude}),
        (100, [i for i in without if i in only], {"exclude": exclude, "only": only}),
        (100, [], {"exclude": NONE, "only": NONE}),
        (0, [], {"exclude": NONE}),
    ):
        ranked = ranker.recommend(vector, k=k, prior=prior, **options)
        np.testing.assert_allclose(ranked.scores, scores[kept[:k]], rtol=1e-4, atol=1e-5)
        if user is not None:  # popularity has ties, in the order of slots
            assert ranked.keys.tolist() == kept[:k]
        assert set(ranked.keys.tolist()) <= set(kept)
        assert ranked.ids == [str(key).encode() for key in ranked.keys.tolist()]
        assert (ranked.clock == 500).all()


@pytest.mark.parametrize("name", MODELS)
def test_ranks_are_rank_is_the_place_in_the_answer(name):
    model = MODELS[name]
    _, ranker = world(model)
    users = ranker.users(np.array([2, 5, 8, 99], np.uint64))
    for target in range(ITEMS + 1):
        targets = np.full(4, target, np.uint64)
        ranks, popular = ranker.ranks(
            users.vectors, users.prior, users.warm, users.seen_offsets, users.seen_keys, targets, nothing_new(4)
        )
        for i in range(4):
            seen = users.seen_keys[users.seen_offsets[i] : users.seen_offsets[i + 1]]
            if target in seen:
                assert np.isnan(ranks[i])
                assert np.isnan(popular[i])
                continue
            vector = users.vectors[i] if users.warm[i] else None
            prior = float(users.prior[i])
            assert ranks[i] == ranker.rank(vector, exclude=seen, target=target, prior=prior)
            assert popular[i] == ranker.rank(None, exclude=seen, target=target)
            answer = ranker.recommend(vector, exclude=seen, k=ITEMS, prior=prior)
            if target >= ITEMS - 2:
                assert np.isinf(ranks[i])
                assert target not in answer.keys
                continue
            ties = np.flatnonzero(answer.scores == answer.scores[answer.keys == target][0])
            assert ranks[i] == 1 + ties.mean()


def test_a_cold_user_gets_decayed_popularity():
    store, ranker = world(MODELS["plain"])
    users = ranker.users(np.array([99], np.uint64))
    assert not users.warm.any()
    answer = ranker.recommend(None, exclude=NONE, k=3)
    popularity = store.lookup("item", np.arange(ITEMS, dtype=np.uint64)).popularity
    assert popularity[answer.keys.astype(int)].tolist() == np.sort(popularity)[::-1][:3].tolist()


def test_nobody_and_an_empty_table():
    model = MODELS["plain"]
    store = MemoryStore()
    for spec in model.tables().values():
        store.create(spec)
    mirror = ItemMirror(store, model)
    ranker = Ranker(store, model, mirror)
    mirror.refresh()
    assert len(ranker.users(NONE).vectors) == 0
    assert len(ranker.recommend(np.ones(6, np.float32), exclude=NONE, k=5).keys) == 0
    ranks, _ = ranker.ranks(
        np.ones((1, 6), np.float32), np.ones(1, np.float32), np.ones(1, bool), np.zeros(2, np.int64), NONE,
        np.ones(1, np.uint64), nothing_new(1),
    )  # fmt: skip
    assert np.isinf(ranks[0])
    assert ranker.rank(None, exclude=NONE, target=1) == np.inf


@pytest.mark.parametrize("length", [1, 3, 10])
def test_recent_items_are_the_newest_first(length):
    from embedding_store.contract import Histories

    counts = [0, 1, 3, 7]
    offsets = np.concatenate([[0], np.cumsum(counts)])
    entries = np.zeros(offsets[-1], ENTRY)
    entries["item"] = np.arange(100, 100 + offsets[-1])
    zeros = np.zeros(4, np.int64)
    recent, lengths = recent_items(Histories(offsets, entries, zeros > 0, zeros, zeros, zeros), length)
    for i, n in enumerate(counts):
        want = list(range(100 + offsets[i], 100 + offsets[i + 1]))[::-1][:length]
        assert (lengths[i], recent[i].tolist()) == (min(n, length), want + [0] * (length - len(want)))


def test_popularity_is_as_of_each_test():
    """Events that the store does not hold yet count one by one, for the tests behind them."""
    model = MODELS["plain"]
    store, ranker = world(model)
    popularity = store.lookup("item", np.arange(ITEMS, dtype=np.uint64)).popularity[: ITEMS - 2].astype(np.float64)
    target, other = int(np.argsort(popularity)[-12]), int(np.argsort(popularity)[3])
    m = 70  # more than are scored together
    before = np.arange(m) // 2
    items = np.where(np.arange(m // 2) % 3 == 0, other, target).astype(np.uint64)
    items[5] = 10_000  # not in the store at all
    vectors, warm = np.zeros((m, 6), np.float32), np.zeros(m, bool)
    arrivals = Arrivals(before, items, np.ones(m // 2, np.float32))
    offsets, targets = np.zeros(m + 1, np.int64), np.full(m, target, np.uint64)
    ranks, popular = ranker.ranks(vectors, np.ones(m, np.float32), warm, offsets, NONE, targets, arrivals)
    for i in range(m):
        now = popularity * 0.5 ** (before[i] / model.popularity_half_life)
        for e in range(before[i]):
            if items[e] < ITEMS:
                now[int(items[e])] += 0.5 ** ((before[i] - 1 - e) / model.popularity_half_life)
        others = np.delete(now, target)
        better, near = (others > now[target] * 1.001).sum(), (np.abs(others / now[target] - 1) < 2e-3).sum()
        assert 1 + better <= ranks[i] <= 1 + better + near
    assert (ranks == popular).all()
    assert ranks[-1] < ranks[0]


@pytest.mark.parametrize("name", MODELS)
def test_many_at_once_get_what_each_gets_alone(name):
    _, ranker = world(MODELS[name])
    users = ranker.users(np.array([2, 5, 8, 3, 7], np.uint64))
    excludes = [users.seen_keys[a:b] for a, b in itertools.pairwise(users.seen_offsets)]
    excludes[3] = np.array([5, 10_000, 7], np.uint64)
    ks = [5, 100, 0, 3, 7]
    together = ranker.recommend_many(users.vectors, users.prior, excludes, ks)
    for i, ranked in enumerate(together):
        alone = ranker.recommend(users.vectors[i], exclude=excludes[i], k=ks[i], prior=float(users.prior[i]))
        assert ranked.keys.tolist() == alone.keys.tolist()
        assert ranked.ids == alone.ids
        np.testing.assert_allclose(ranked.scores, alone.scores, rtol=1e-5)
        assert (ranked.clock == alone.clock).all()
    assert ranker.recommend_many(users.vectors[:0], users.prior[:0], [], []) == []


@pytest.mark.parametrize("name", MODELS)
def test_scores_are_those_that_items_are_recommended_by(name):
    _, ranker = world(MODELS[name])
    keys = np.array([*range(ITEMS), 999, 3], np.uint64)
    users = ranker.users(np.arange(1, 10, dtype=np.uint64))
    for vector, prior in [*zip(users.vectors, users.prior.tolist(), strict=True), (None, None)]:
        ranked = ranker.recommend(vector, exclude=NONE, k=ITEMS, prior=prior)
        scores = ranker.score(vector, keys, prior=prior)
        expected = dict(zip(ranked.keys.tolist(), ranked.scores.tolist(), strict=True))
        assert len(expected) == ITEMS - 2
        assert scores.tolist() == pytest.approx([expected.get(key, -np.inf) for key in keys.tolist()], abs=1e-6)


def test_an_empty_mirror_scores_nothing():
    model = MODELS["plain"]
    ranker = Ranker(MemoryStore(), model, ItemMirror(MemoryStore(), model))
    key, vector = np.array([1], np.uint64), np.ones(6, np.float32)
    assert ranker.score(vector, key).tolist() == ranker.score(None, key).tolist() == [-np.inf]
    assert len(ranker.similar(vector[None], exclude=NONE, k=3).keys) == 0


@pytest.mark.parametrize("given", [[4], [4, 11], [4, 4, 11, 30]])
@pytest.mark.parametrize("name", ["plain", "dense, user"])
def test_similar_items_are_the_head_of_a_sort_by_cosine(name, given):
    _, ranker = world(MODELS[name])
    outputs = ranker.mirror.items(np.arange(ITEMS, dtype=np.uint64)).vectors.astype(np.float64)
    units = outputs / np.linalg.norm(outputs, axis=1, keepdims=True)
    direction = units[given].sum(axis=0)
    cosines = units @ direction / np.linalg.norm(direction)
    keys = np.array(given, np.uint64)
    expected = [i for i in np.argsort(-cosines) if i not in given and i < ITEMS - 2]
    ranked = ranker.similar(ranker.mirror.items(keys).vectors, exclude=keys, k=5)
    assert ranked.keys.tolist() == expected[:5]
    np.testing.assert_allclose(ranked.scores, cosines[expected[:5]], atol=1e-6)
    only = np.array([expected[9], expected[3], 999], np.uint64)
    assert ranker.similar(ranker.mirror.items(keys).vectors, exclude=keys, k=5, only=only).keys.tolist() == [
        expected[3],
        expected[9],
    ]


def test_nothing_is_near_to_what_has_no_direction():
    _, ranker = world(MODELS["plain"])
    opposite = np.array([[1, 0, 0, 0, 0, 0], [-1, 0, 0, 0, 0, 0]], np.float32)
    for vectors in (np.zeros((1, 6), np.float32), opposite):
        assert ranker.similar(vectors, exclude=NONE, k=100).scores.tolist() == [0.0] * (ITEMS - 2)
