"""Scans by codes and bounds, against scans of every row, and against sorting in NumPy."""

import numpy as np
import pytest

from native.coarse import TILE, encode, tiles, top_k_of_many
from native.scan import score_items


def coarse_of(vectors):
    codes = np.zeros(tiles(*vectors.shape), np.uint8)
    scales = np.zeros(len(codes) * TILE, np.float32)
    encode(vectors, np.arange(len(vectors)), codes, scales)
    return codes, scales


def many(vectors, popularity, users, weights, excluded, k, coarse=None, likely=0, masks=None, masked=None):
    """[(slots, scores) of each user]; coarse None: scales that bound nothing, so that every row is scored."""
    codes, scales = coarse_of(vectors) if coarse is None else coarse
    m = len(users)
    offsets = np.concatenate([[0], np.cumsum([len(own) for own in excluded])]).astype(np.int64)
    every = np.concatenate([*excluded, np.zeros(0, np.int64)]).astype(np.int64)
    slots = np.full((m, max(1, k.max(initial=0))), -7, np.int64)
    best = np.full(slots.shape, -np.inf, np.float32)
    for array in (vectors, popularity, users, weights, k):
        array.flags.writeable = False
    masks = np.zeros((1, 0), np.bool_) if masks is None else masks
    masked = np.full(m, -1) if masked is None else masked
    rows = (vectors, popularity, np.float32(-2), codes, scales)
    sizes = top_k_of_many(*rows, users, weights, offsets, every, masks, masked, k, likely, 0, len(vectors), slots, best)
    return [(slots[u, : sizes[u]], best[u, : sizes[u]]) for u in range(m)]


def unbounded(vectors):
    codes, scales = coarse_of(vectors)
    return codes, np.full_like(scales, np.nan)


def sorted_best(scores, k):
    finite = np.flatnonzero(np.isfinite(scores))
    return finite[np.lexsort((finite, -scores[finite]))][:k].tolist()


@pytest.mark.parametrize("users", [0, 1, 2, 3, 4, 5, 8, 11])
@pytest.mark.parametrize("n", [0, 1, 127, 128, 300])
def test_many_users_in_one_pass_get_what_each_gets_alone(users, n):
    rng = np.random.default_rng(users + n)
    vectors, tastes = (rng.integers(-3, 4, (m, 5)).astype(np.float32) for m in (n, users))  # sums are exact: ties
    popularity = np.log(rng.random(n)).astype(np.float32)
    popularity[rng.random(n) < 0.2] = -np.inf
    vectors[rng.random(n) < 0.1, 0] = np.nan
    weights = rng.choice([0.0, 0.5, 1.0], users).astype(np.float32)
    excluded = [np.sort(rng.integers(-1, n, m) if n else np.full(m, -1)) for m in rng.integers(0, 20, users)]
    k = rng.integers(0, 12, users)
    likely = int(popularity.argmax()) if n else 0
    for u, (slots, best) in enumerate(many(vectors, popularity, tastes, weights, excluded, k, likely=likely)):
        alone = np.empty(n, np.float32)
        score_items(vectors, popularity, np.float32(-2), tastes[u], weights[u], alone)
        alone[excluded[u][excluded[u] >= 0]] = -np.inf
        assert slots.tolist() == sorted_best(alone, int(k[u]))
        np.testing.assert_array_equal(best, alone[slots])


@pytest.mark.parametrize("share", [0.0, 0.002, 0.1, 0.9, 1.0])
def test_whoever_has_a_mask_gets_the_best_of_it(share):
    rng = np.random.default_rng(3)
    n, m = 1500, 11
    vectors, tastes = (rng.normal(size=(count, 9)).astype(np.float32) for count in (n, m))
    popularity = np.log(rng.random(n)).astype(np.float32)
    weights = rng.choice([0.0, 0.5], m).astype(np.float32)
    masks = rng.random((3, n)) < share
    masks[2] = np.arange(n) >= 1400  # most tiles have none
    masked = np.arange(m) % 4 - 1
    excluded = [np.sort(rng.integers(-1, n, 30)) for _ in range(m)]
    k = np.full(m, 10)
    for start in (0, 4):  # one that shares its tiles with others, and four alone with the same mask
        whose = masked if not start else np.full(m, 2)
        for u, (slots, best) in enumerate(
            many(vectors, popularity, tastes, weights, excluded, k, likely=7, masks=masks, masked=whose)
        ):
            alone = np.empty(n, np.float32)
            score_items(vectors, popularity, np.float32(-2), tastes[u], weights[u], alone)
            alone[excluded[u][excluded[u] >= 0]] = -np.inf
            if whose[u] >= 0:
                alone[~masks[whose[u]]] = -np.inf
            assert slots.tolist() == sorted_best(alone, 10)
            np.testing.assert_array_equal(best, alone[slots])


def rows_of(kind, rng, n, dim):
    """Rows that strain bounds."""
    vectors = rng.normal(size=(n, dim))
    if kind == "of every magnitude":
        vectors *= 10.0 ** rng.uniform(-44, 37, (n, 1))
    if kind == "of one large value":  # the others are all rounded away
        vectors[:, 0] = 1e4
    if kind == "between codes":  # the most that rounding can take: half a step, in the direction of the user
        vectors = (rng.integers(-126, 126, (n, dim)) + 0.499) / 127
        vectors[:, -1] = 1.0
    if kind == "near ties":
        vectors = vectors[:1] + 1e-7 * rng.integers(-3, 4, (n, dim))
    if kind == "ties":
        vectors = vectors[rng.integers(0, 3, n)]
    if kind == "not finite":
        bad = np.array([np.nan, np.inf, -np.inf, 3.4e38, -3.4e38])
        vectors[rng.random((n, dim)) < 0.2 / dim] = rng.choice(bad)
    return vectors.astype(np.float32)


KINDS = (
    "plain",
    "of every magnitude",
    "of one large value",
    "between codes",
    "near ties",
    "ties",
    "not finite",
    "rising",
)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dim", [1, 7, 8, 64, 129])
@pytest.mark.parametrize("magnitude", [0.0, 1e-42, 1e-20, 1.0, 1e20])
def test_bounds_change_nothing(kind, dim, magnitude):
    rng = np.random.default_rng(dim)
    n, m = 5 * TILE + 9, 7
    vectors = rows_of(kind, rng, n, dim)
    users = (magnitude * rng.normal(size=(m, dim))).astype(np.float32)
    users[1] = abs(users[1])
    if kind == "rising":  # every row is the best so far
        with np.errstate(over="ignore", invalid="ignore"):
            vectors = vectors[np.argsort(vectors @ users[0])]
    popularity = np.where(rng.random(n) < 0.1, -np.inf, np.log(rng.random(n))).astype(np.float32)
    weights = np.array([0, 0, 1e-3, 1, 1, -1, 30], np.float32)
    excluded = [np.sort(rng.choice(n, 50, replace=False)) for _ in range(m)]
    k = np.array([1, 3, 10, 0, 100, 10, 2 * n])
    bounded = many(vectors, popularity, users, weights, excluded, k, likely=int(rng.integers(n)))
    plain = many(vectors, popularity, users, weights, excluded, k, unbounded(vectors))
    for (slots, best), (all_slots, all_best) in zip(bounded, plain, strict=True):
        np.testing.assert_array_equal(slots, all_slots)
        np.testing.assert_array_equal(best.view(np.int32), all_best.view(np.int32))


def test_bounds_spare_most_rows():
    """Rows whose codes stay but that are gone are missed only if the scan came back for them."""
    rng = np.random.default_rng(1)
    vectors = rng.normal(size=(100 * TILE, 64)).astype(np.float32)
    user, k = rng.normal(size=(1, 64)).astype(np.float32), np.array([5])
    arguments = (np.zeros(len(vectors), np.float32), user, np.zeros(1, np.float32), [np.zeros(0, np.int64)], k)
    coarse = coarse_of(vectors)
    ((slots, _),) = many(vectors, *arguments, coarse)
    rest = vectors.copy()
    exact = vectors @ user[0]
    needed = exact > np.sort(exact)[-200]  # those beyond are below any bar, once some tiles have been seen
    rest[10 * TILE :][~needed[10 * TILE :]] = 1e9 * user[0]
    ((again, _),) = many(rest, *arguments, coarse)
    assert again.tolist() == slots.tolist()


@pytest.mark.parametrize("dim", [1, 7, 8, 64])
def test_codes_are_within_half_a_step(dim):
    rng = np.random.default_rng(dim)
    vectors = (rng.normal(size=(300, dim)) * 10.0 ** rng.uniform(-20, 20, (300, 1))).astype(np.float32)
    vectors[7], vectors[8] = 0.0, -vectors[9]
    vectors.flags.writeable = False
    codes, scales = coarse_of(vectors)
    rows = codes.transpose(0, 1, 3, 2, 4).reshape(len(codes) * TILE, -1)[:300, :dim].astype(np.int64) - 128
    wide = scales[:300, None].astype(np.float64)
    assert (abs(vectors - wide * rows) <= 0.50001 * wide).all()


def test_only_the_rows_named_are_encoded():
    rng = np.random.default_rng(2)
    vectors = rng.normal(size=(300, 9)).astype(np.float32)
    codes, scales = coarse_of(vectors)
    changed = vectors.copy()
    slots = np.array([0, 127, 128, 299])
    changed[slots] *= rng.normal(size=(4, 9)).astype(np.float32)
    changed[0, 3], changed[127, 3] = np.nan, -np.inf
    encode(changed, slots, codes, scales)
    all_codes, all_scales = coarse_of(changed)
    np.testing.assert_array_equal(codes, all_codes)
    np.testing.assert_array_equal(scales, all_scales)
    assert np.isnan(scales[[0, 127]]).all()
    assert np.isfinite(scales[[128, 299]]).all()


def test_ties_with_the_worst_of_the_best_are_not_looked_at():
    """Popularity on its floor and vectors that have decayed give whole catalogues the same score."""
    vectors = np.zeros((20 * TILE, 8), np.float32)
    user, none = np.ones((1, 8), np.float32), [np.zeros(0, np.int64)]
    arguments = (np.full(len(vectors), -9.0, np.float32), user, np.ones(1, np.float32), none, np.array([5]))
    coarse = coarse_of(vectors)
    gone = vectors.copy()
    gone[TILE:] = 1.0  # where the codes still say 0
    ((slots, _),) = many(gone, *arguments, coarse)
    assert slots.tolist() == [0, 1, 2, 3, 4]


def test_a_likely_item_spares_rows_that_are_each_better_than_all_before():
    rising = np.arange(20 * TILE, dtype=np.float32)[:, None] * np.ones(8, np.float32)
    user, none = np.ones((1, 8), np.float32), [np.zeros(0, np.int64)]
    arguments = (np.zeros(len(rising), np.float32), user, np.zeros(1, np.float32), none, np.array([5]))
    coarse = coarse_of(rising)
    gone = rising.copy()
    gone[: 18 * TILE] = 1e9  # where the codes still say less
    ((slots, _),) = many(gone, *arguments, coarse, likely=len(rising) - 1)
    assert slots.tolist() == [20 * TILE - 1 - i for i in range(5)]
