"""Scoring every item against a vector, and what is read off the scores: the best k, or one item's rank."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from native.heap import sift_down, sift_up, sort_heap

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
            sift_up(best, slots, size, s, i)
            size += 1
        elif k > 0 and s > best[0]:
            sift_down(best, slots, size, s, i)
    sort_heap(best, slots, size)
    return size


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
