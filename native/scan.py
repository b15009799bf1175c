"""Scoring every item against a vector, and what is read off the scores: the best k, or one item's rank."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]

_SUM_ORDER = {"reassoc", "contract"}
"""The only liberties taken: sums may be vectorized. NaN and infinity still go through."""


@njit(cache=True, nogil=True, fastmath=_SUM_ORDER)
def score_items(vectors: F32, popularity: F32, floor: np.float32, user: F32, weight: np.float32, out: F32) -> None:
    """out[i] = Σ_j vectors[i, j]·user[j] + weight·max(popularity[i], floor) in float32.

    vectors (n, dim) f32, popularity (n,) f32 in logs, user (dim,) f32, out (n,) f32; a popularity of -inf keeps an item
    out, whatever the weight.
    """
    dim = vectors.shape[1]
    for i in range(vectors.shape[0]):
        total = np.float32(0.0)
        for j in range(dim):
            total += vectors[i, j] * user[j]
        out[i] = total + _prior(popularity[i], floor, weight)


@njit(cache=True, nogil=True, fastmath=_SUM_ORDER)
def cosine_items(vectors: F32, popularity: F32, direction: F32, out: F32) -> None:
    """out[i] = Σ_j vectors[i, j]·direction[j] / |vectors[i]| in float32: cosines, where the direction has length 1.

    vectors (n, dim) f32, popularity (n,) f32, direction (dim,) f32, out (n,) f32. -inf where popularity is -inf, as in
    `score_items`, and for a row of zeros, which has no direction.
    """
    dim = vectors.shape[1]
    for i in range(vectors.shape[0]):
        if popularity[i] == -np.inf:
            out[i] = -np.inf
            continue
        total = np.float32(0.0)
        squares = np.float32(0.0)
        for j in range(dim):
            total += vectors[i, j] * direction[j]
            squares += vectors[i, j] * vectors[i, j]
        out[i] = total / np.sqrt(squares) if squares != np.float32(0.0) else -np.float32(np.inf)


@njit(cache=True, inline="always")
def _prior(popularity: np.float32, floor: np.float32, weight: np.float32) -> np.float32:
    if popularity == -np.inf:  # 0·(-inf) would be NaN: with no weight on popularity an unnamed item still stays out
        return popularity
    return weight * max(popularity, floor)


@njit(cache=True, nogil=True)
def top_k(scores: F32, slots: I64, best: F32) -> int:
    """Slots of the `len(slots)` best finite scores, best first, ties by lower slot; returns how many there are.

    A heap of k: O(n + k log k) where the order is random. slots (k,) i64 and best (k,) f32 are filled.
    """
    k = len(slots)
    size = 0
    for i in range(len(scores)):
        s = scores[i]
        if not np.isfinite(s):
            continue
        if size < k:
            _sift_up(best, slots, size, s, i)
            size += 1
        elif k > 0 and s > best[0]:
            _sift_down(best, slots, size, s, i)
    _sort_heap(best, slots, size)
    return size


@njit(cache=True, nogil=True)
def _sort_heap(best: F32, slots: I64, size: int) -> None:
    """Heap sort: worst to the end."""
    for end in range(size - 1, 0, -1):
        s, i = best[end], slots[end]
        best[end], slots[end] = best[0], slots[0]
        _sift_down(best, slots, end, s, i)


@njit(cache=True, nogil=True)
def _sift_up(best: F32, slots: I64, size: int, s: np.float32, i: int) -> None:
    """Into a heap of `size`, whose root is the worst of the kept."""
    at = size
    while at > 0:
        parent = (at - 1) // 2
        if best[parent] < s or (best[parent] == s and slots[parent] > i):
            break
        best[at] = best[parent]
        slots[at] = slots[parent]
        at = parent
    best[at] = s
    slots[at] = i


@njit(cache=True, nogil=True)
def _sift_down(best: F32, slots: I64, size: int, s: np.float32, i: int) -> None:
    at = 0
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        right = child + 1
        if right < size and (best[right] < best[child] or (best[right] == best[child] and slots[right] > slots[child])):
            child = right
        if s < best[child] or (s == best[child] and i > slots[child]):
            break
        best[at] = best[child]
        slots[at] = slots[child]
        at = child
    best[at] = s
    slots[at] = i


@njit(cache=True, nogil=True)
def rank_of(scores: F32, target: int) -> float:
    """1 + strictly better finite scores + half of the ties, of item `target`; inf where its own score isn't finite."""
    s = scores[target]
    if not np.isfinite(s):
        return np.inf
    better = 0
    ties = 0
    for i in range(len(scores)):
        if scores[i] > s and np.isfinite(scores[i]):
            better += 1
        elif scores[i] == s and i != target:
            ties += 1
    return 1.0 + better + 0.5 * ties


@njit(cache=True, nogil=True)
def ranks_of(
    scores: F32,
    popularity: F32,
    floor: np.float32,
    weight: F32,
    warm: Bool,
    offsets: I64,
    seen: I64,
    target: I64,
    arrived: I64,
    arrivals: I64,
    gains: F32,
    ranks: F64,
    popular: F64,
) -> None:
    """Where each target stands among the items its user has not seen: by model and by popularity alone.

    scores (m, n): products of m users and n items, written over; popularity (n,), floor and weight (m,) as
    `score_items`; cold users (warm False) are ranked by popularity; seen[offsets[i]:offsets[i + 1]] are left out
    (negative: unknown); target (m,), -1 for an item not among the n. Fills ranks and popular (m,): inf for a target
    that is not there or left out.

    Popularity of user i is as after the first arrived[i] of the events arrivals (e,), slots, negative: unknown; each
    adds gains[e], in logs. arrived (m,) must not fall; popularity is left as after the last of them.
    """
    alone = np.empty(len(popularity), np.float32)
    come = 0
    for i in range(len(target)):
        while come < arrived[i]:
            slot = arrivals[come]
            if slot >= 0:
                popularity[slot] = np.logaddexp(popularity[slot], gains[come])
            come += 1
        ranks[i] = np.inf
        popular[i] = np.inf
        if target[i] < 0:
            continue
        alone[:] = popularity
        _leave_out(alone, seen, offsets[i], offsets[i + 1])
        popular[i] = rank_of(alone, target[i])
        ranks[i] = popular[i]
        if warm[i]:
            row = scores[i]
            for j in range(len(row)):
                row[j] += _prior(popularity[j], floor, weight[i])
            _leave_out(row, seen, offsets[i], offsets[i + 1])
            ranks[i] = rank_of(row, target[i])


@njit(cache=True, inline="always")
def _leave_out(scores: F32, slots: I64, start: int, stop: int) -> None:
    for k in range(start, stop):
        if slots[k] >= 0:
            scores[slots[k]] = -np.inf


_BLOCK = 128
"""Items scored for all users before the next: 64 floats of so many stay in the first cache."""


@njit(cache=True, nogil=True)
def top_k_of_many(
    vectors: F32,
    popularity: F32,
    floor: np.float32,
    users: F32,
    weights: F32,
    offsets: I64,
    excluded: I64,
    k: I64,
    slots: I64,
    best: F32,
) -> I64:
    """`score_items` and `top_k` of m users in one pass over the items; returns (m,) how many each got.

    vectors (n, dim), popularity (n,), users (m, dim), weights (m,) f32; slots excluded[offsets[u]:offsets[u + 1]],
    sorted, are left out for user u, who gets k[u] ≤ slots.shape[1] items in slots[u] and best[u], best first, ties by
    lower slot. Four users at a time share what is loaded of an item.
    """
    m, n = users.shape[0], vectors.shape[0]
    sizes = np.zeros(m, np.int64)
    scores = np.empty((4, _BLOCK), np.float32)
    floored = np.empty(_BLOCK, np.float32)
    for start in range(0, n, _BLOCK):
        rows = vectors[start : start + _BLOCK]
        prior = floored[: rows.shape[0]]
        for i in range(rows.shape[0]):
            p = popularity[start + i]
            prior[i] = p if p == -np.inf else max(p, floor)
        for first in range(0, m, 4):
            four = min(4, m - first)
            if four == 4:
                _products_of_four(rows, users[first], users[first + 1], users[first + 2], users[first + 3], scores)
            else:
                for u in range(four):
                    _products(rows, users[first + u], scores[u])
            for u in range(four):
                to = first + u
                bar = best[to, 0] if 0 < k[to] == sizes[to] else -np.float32(np.inf)
                if _add_prior(scores[u], prior, weights[to], bar):
                    own, found = excluded[offsets[to] : offsets[to + 1]], scores[u, : rows.shape[0]]
                    sizes[to] = _keep_best(found, start, own, k[to], sizes[to], slots[to], best[to])
    for u in range(m):
        _sort_heap(best[u], slots[u], sizes[u])
    return sizes


@njit(cache=True, nogil=True, fastmath=_SUM_ORDER)
def _products(rows: F32, user: F32, out: F32) -> None:
    """out[i] = rows[i]·user."""
    for i in range(rows.shape[0]):
        total = np.float32(0.0)
        for j in range(rows.shape[1]):
            total += rows[i, j] * user[j]
        out[i] = total


@njit(cache=True, nogil=True, fastmath=_SUM_ORDER)
def _products_of_four(rows: F32, one: F32, two: F32, three: F32, four: F32, out: F32) -> None:
    """`_products` of four users."""
    for i in range(rows.shape[0]):
        a = np.float32(0.0)
        b = np.float32(0.0)
        c = np.float32(0.0)
        d = np.float32(0.0)
        for j in range(rows.shape[1]):
            v = rows[i, j]
            a += v * one[j]
            b += v * two[j]
            c += v * three[j]
            d += v * four[j]
        out[0, i] = a
        out[1, i] = b
        out[2, i] = c
        out[3, i] = d


@njit(cache=True, nogil=True)
def _add_prior(scores: F32, prior: F32, weight: np.float32, bar: np.float32) -> int:
    """scores[i] += weight·prior[i]; how many are above the bar: none in most blocks, and no branch to find out.

    0·(-inf) is NaN: it keeps an item out as -inf does.
    """
    above = 0
    for i in range(len(prior)):
        s = scores[i] + weight * prior[i]
        scores[i] = s
        above += s > bar
    return above


@njit(cache=True, nogil=True)
def _keep_best(scores: F32, first: int, excluded: I64, k: int, size: int, slots: I64, best: F32) -> int:
    """Items first, first + 1, … into the heap of the `size` best so far, unless excluded; returns its new size."""
    for i in range(len(scores)):
        s = scores[i]
        if size == k and (k == 0 or not s > best[0]):
            continue
        if not np.isfinite(s):
            continue
        at = np.searchsorted(excluded, first + i)
        if at < len(excluded) and excluded[at] == first + i:
            continue
        if size < k:
            _sift_up(best, slots, size, s, first + i)
            size += 1
        else:
            _sift_down(best, slots, size, s, first + i)
    return size
