"""Scores, the best k and ranks, against sorting in NumPy."""

import numpy as np
import pytest

from native.scan import cosine_items, rank_of, ranks_of, score_items, top_k


def best_of(scores, k):
    slots, best = np.full(k, -7, np.int64), np.full(k, np.nan, np.float32)
    n = top_k(scores, slots, best)
    assert (best[:n] == scores[slots[:n]]).all()
    return slots[:n].tolist()


def sorted_best(scores, k):
    finite = np.flatnonzero(np.isfinite(scores))
    return finite[np.lexsort((finite, -scores[finite]))][:k].tolist()


def slow_rank(scores, target):
    if not np.isfinite(scores[target]):
        return np.inf
    finite = scores[np.isfinite(scores)]
    return 1 + (finite > scores[target]).sum() + ((finite == scores[target]).sum() - 1) / 2


def scores_of(rng, n, kind):
    scores = rng.normal(size=n).astype(np.float32)
    if kind == "ties":
        scores = rng.integers(0, 4, n).astype(np.float32)
    if kind == "holes" and n:
        bad = np.array([np.nan, np.inf, -np.inf], np.float32)
        scores[rng.integers(0, n, n // 2)] = rng.choice(bad, n // 2)
    if kind == "rising":
        scores.sort()
    scores.flags.writeable = False
    return scores


@pytest.mark.parametrize("kind", ["random", "ties", "holes", "rising"])
@pytest.mark.parametrize("n", [0, 1, 2, 50, 501])
@pytest.mark.parametrize("k", [0, 1, 3, 10, 1000])
def test_top_k_is_the_head_of_the_sort(kind, n, k):
    scores = scores_of(np.random.default_rng(n + k), n, kind)
    assert best_of(scores, k) == sorted_best(scores, k)


def test_nothing_that_is_not_finite_is_ever_best():
    scores = np.array([np.nan, np.inf, -np.inf, np.nan], np.float32)
    assert best_of(scores, 4) == []
    assert best_of(np.append(scores, np.float32(-5)), 2) == [4]


@pytest.mark.parametrize("kind", ["random", "ties", "holes"])
def test_ranks_count_the_better_and_half_of_the_ties(kind):
    scores = scores_of(np.random.default_rng(5), 60, kind)
    assert [rank_of(scores, i) for i in range(60)] == [slow_rank(scores, i) for i in range(60)]


def test_a_rank_among_ties_is_in_their_middle():
    scores = np.array([1, 1, 1, 2, np.nan, np.inf], np.float32)
    assert [rank_of(scores, i) for i in range(6)] == [3.0, 3.0, 3.0, 1.0, np.inf, np.inf]


@pytest.mark.parametrize(("n", "dim"), [(0, 3), (1, 1), (40, 5), (7, 129)])
@pytest.mark.parametrize("weight", [0.0, 0.7])
def test_scores_are_dot_products_plus_weighted_popularity(n, dim, weight):
    rng = np.random.default_rng(dim)
    vectors, user = rng.normal(size=(n, dim)).astype(np.float32), rng.normal(size=dim).astype(np.float32)
    popularity = rng.normal(size=n).astype(np.float32)
    if n > 3:
        popularity[1], popularity[2], vectors[3, 0] = -np.inf, -9.0, np.nan
    for array in (vectors, user, popularity):
        array.flags.writeable = False
    out = np.empty(n, np.float32)
    score_items(vectors, popularity, np.float32(-1.0), user, np.float32(weight), out)
    with np.errstate(invalid="ignore"):
        prior = np.where(np.isneginf(popularity), -np.inf, weight * np.maximum(np.maximum(popularity, -1.0), -99))
        want = vectors.astype(np.float64) @ user + prior
    np.testing.assert_allclose(out, want, rtol=1e-4, atol=1e-5)
    if n > 3:
        assert best_of(out, n) == [i for i in sorted_best(out, n) if i not in (1, 3)]


@pytest.mark.parametrize("seed", range(4))
def test_many_ranks_at_once(seed):
    rng = np.random.default_rng(seed)
    n, m = 30, 25
    scores, popularity = rng.integers(-2, 3, (m, n)).astype(np.float32), rng.integers(-6, 1, n).astype(np.float32)
    popularity[:3] = -np.inf
    scores[0, 4] = np.nan
    warm, weight = rng.random(m) < 0.7, rng.integers(0, 3, m).astype(np.float32)
    counts = rng.integers(0, 12, m)
    counts[3] = 0
    offsets = np.concatenate([[0], np.cumsum(counts)])
    seen, target = rng.integers(-1, n, offsets[-1]), rng.integers(-1, n, m)
    arrived, arrivals, gains = np.zeros(m, np.int64), np.zeros(0, np.int64), np.zeros(0, np.float32)
    for array in (warm, weight, offsets, seen, target, arrived, arrivals, gains):
        array.flags.writeable = False
    ranks, popular = np.empty(m), np.empty(m)
    ranks_of(
        scores.copy(), popularity.copy(), np.float32(-4.0), weight, warm, offsets, seen, target, arrived, arrivals,
        gains, ranks, popular,
    )  # fmt: skip
    for i in range(m):
        own = seen[offsets[i] : offsets[i + 1]]
        own = own[own >= 0]
        prior = np.where(np.isneginf(popularity), -np.inf, weight[i] * np.maximum(popularity, -4.0).clip(-99))
        by_model, by_popularity = scores[i] + prior.astype(np.float32), popularity.copy()
        by_model[own] = by_popularity[own] = -np.inf
        if target[i] < 0 or target[i] in own:
            want = (np.inf, np.inf)
        else:
            popular_rank = slow_rank(by_popularity, target[i])
            want = (slow_rank(by_model, target[i]) if warm[i] else popular_rank, popular_rank)
        np.testing.assert_equal((ranks[i], popular[i]), want)


def test_no_tests_and_no_items():
    none, zero, index = np.zeros(0), np.zeros(1, np.int64), np.zeros(0, np.int64)
    nothing, floor, nobody = np.zeros(0, np.float32), np.float32(0), np.zeros(0, np.bool_)
    came = (index, nothing)
    ranks_of(
        np.zeros((0, 0), np.float32),
        nothing,
        floor,
        nothing,
        nobody,
        zero,
        index,
        index,
        index,
        *came,
        none,
        none.copy(),
    )
    one, two = np.empty(1), np.zeros(2, np.int64)
    unknown = (np.ones(1, np.float32), np.ones(1, np.bool_), two, index, np.array([-1]))
    ranks_of(np.zeros((1, 0), np.float32), nothing, floor, *unknown, zero, *came, one, one.copy())
    assert np.isinf(one[0])


@pytest.mark.parametrize("dim", [1, 7, 64])
@pytest.mark.parametrize("n", [0, 1, 50])
def test_cosines_are_products_over_lengths(n, dim):
    rng = np.random.default_rng(n + dim)
    vectors = rng.normal(size=(n, dim)).astype(np.float32)
    popularity = np.where(rng.random(n) < 0.2, -np.inf, -1.0).astype(np.float32)
    if n > 2:
        vectors[0], vectors[1] = 0.0, np.nan
        popularity[:2] = -1.0
    direction = rng.normal(size=dim).astype(np.float32)
    direction /= np.linalg.norm(direction)
    for array in (vectors, popularity, direction):
        array.flags.writeable = False
    out = np.full(n, 7, np.float32)
    cosine_items(vectors, popularity, direction, out)
    with np.errstate(invalid="ignore"):
        wide = vectors.astype(np.float64)
        expected = wide @ direction / np.linalg.norm(wide, axis=1)
    expected[(popularity == -np.inf) | (vectors == 0).all(axis=1)] = -np.inf
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-6)
