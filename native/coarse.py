"""Rows in a quarter of their bytes with a bound on what that loses: a scan reads these, and rows only where it must.

Row v is kept as 8-bit codes q and a scale s, s = max|v_j| / 127 and q_j = round(v_j / s), so |v_j - s·q_j| ≤ s/2. A
user u becomes codes p and a scale t in the same way, for one pass. With |q_j| ≤ 127

    v·u ≤ s·(t·(q·p) + 127·Σ_j |u_j - t·p_j| + Σ_j |u_j| / 2),

q·p a sum of integers (`native.byte_products`). A row whose bound is not above the worst of the best so far is not among
the best; what is left is scored from the row itself. So the answer is that of the scan of all rows, to the bit, from a
quarter of the memory traffic. (The same idea at scale: "vector approximation file", Weber, Schek, Blott 1998.)

Codes lie in tiles of 128 rows, blocks of 16, four dimensions of a row next to each other: codes[slot // 128,
slot % 128 // 16, j // 4, slot % 16, j % 4]. They are 128 + q, without a sign: what that adds to a sum is of the user
alone.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from native.byte_products import ROWS, TOGETHER, block_sums_of_four, block_sums_of_one
from native.heap import sift_down, sift_up, sort_heap

F32 = npt.NDArray[np.float32]
I8 = npt.NDArray[np.int8]
U8 = npt.NDArray[np.uint8]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]

TILE = 128
_BLOCKS = TILE // ROWS
_ZERO = 128
_LEVELS = np.float32(127.0)
_INFINITY = np.int32(0x7F800000)
_SMALLEST = np.float32(1e-30)
"""A scale is made of no less, so that its rounding is relative. Of smaller rows too the bound holds."""
_UNDERFLOW = np.float32(1e-37)
"""More than products below float32's normal range can lose."""
_ROUNDING = 4 * 128 / 2**24
"""Twice what sums of n terms in float32 lose, here and in the row's own score, over n·s·Σ|u_j|: t·Σ|p_j| ≤ 2·Σ|u_j|."""
_SUM_ORDER = {"reassoc", "contract"}


def tiles(rows: int, dim: int) -> tuple[int, int, int, int, int]:
    """Shape of the codes of so many rows. Dimensions beyond `dim` may hold anything."""
    return -(-rows // TILE), _BLOCKS, -(-dim // TOGETHER), ROWS, TOGETHER


@njit(cache=True, nogil=True)
def encode(vectors: F32, slots: I64, codes: U8, scales: F32) -> None:
    """Codes and scales of the rows `slots` (m,), which changed. O(m·dim).

    vectors (n, dim) f32, codes of shape `tiles(n, dim)`, scales (n or more,) f32. A row that holds NaN or infinity gets
    NaN for a scale: no bound.
    """
    bits = vectors.view(np.int32)
    largest = np.zeros(1, np.int32)
    for i in range(len(slots)):
        slot = slots[i]
        largest[0] = _largest(bits, slot)
        finite = largest[0] < _INFINITY
        most = max(largest.view(np.float32)[0], _SMALLEST)
        steps = _LEVELS / most if finite else np.float32(0.0)
        scales[slot] = most / _LEVELS if finite else np.float32(np.nan)
        tile, block, row = slot // TILE, slot % TILE // ROWS, slot % ROWS
        for j in range(vectors.shape[1]):
            code = np.int64(np.rint(vectors[slot, j] * steps)) if finite else 0
            codes[tile, block, j // TOGETHER, row, j % TOGETHER] = np.uint8(_ZERO + code)


@njit(cache=True, nogil=True)
def _largest(bits: I32, slot: int) -> np.int32:
    """Of a row of float32 as integers without signs: they are in the order of the floats, infinity and NaN last."""
    out = np.int32(0)
    for j in range(bits.shape[1]):
        out = max(out, bits[slot, j] & np.int32(0x7FFFFFFF))
    return out


@njit(cache=True, nogil=True)
def top_k_of_many(
    vectors: F32,
    popularity: F32,
    floor: np.float32,
    codes: U8,
    scales: F32,
    users: F32,
    weights: F32,
    offsets: I64,
    excluded: I64,
    masks: Bool,
    masked: I64,
    k: I64,
    likely: int,
    begin: int,
    end: int,
    slots: I64,
    best: F32,
) -> I64:
    """`native.scan.score_items` and `top_k` of m users in one pass over the items; returns (m,) how many each got.

    Of items begin, …, end − 1 alone; begin is a multiple of TILE. The best of parts of all items, `merged`, are the
    best of all.

    vectors (n, dim), popularity (n,), users (m, dim), weights (m,) f32; codes and scales as `encode` made them; slots
    excluded[offsets[u]:offsets[u + 1]], sorted, are left out for user u, who gets k[u] ≤ slots.shape[1] items in
    slots[u] and best[u], best first, ties by lower slot. Four users at a time share what is loaded of an item.

    masks (c, n), c ≥ 1: user u gets items of masks[masked[u]] alone, where masked[u] (m,) is not negative. A tile that
    has no item for any of four users is not looked at.

    likely: a slot among good ones, such as the most popular's: its tile is scored first, so that bounds are of use from
    the first tile on, even where each item is better than all before it. It changes no answer.
    """
    m, n = users.shape[0], vectors.shape[0]
    tastes = np.zeros((m + 3, codes.shape[2] * TOGETHER), np.int8)  # the last one is summed as four
    scaled, shift, halves = np.empty(m, np.float32), np.empty(m, np.int32), np.empty(m, np.float32)
    for u in range(m):
        scaled[u], shift[u], halves[u] = _coarse_user(users, u, tastes)
    words = tastes.view(np.int32)
    sizes = np.zeros(m, np.int64)
    unbounded, nothing = np.full(TILE, np.nan, np.float32), np.float32(np.nan)
    sure = np.full(m, nothing)  # what is not above it is not among the best: the k-th best is at least the next float
    sums, bounds = np.empty((4, TILE), np.int32), np.empty(TILE, np.float32)
    prior = np.empty(TILE, np.float32)
    left = np.zeros(4, np.bool_)
    start = likely // TILE * TILE
    rows = max(0, min(TILE, n - start))
    _floored(popularity, start, rows, floor, prior)
    for u in range(m):
        own = excluded[offsets[u] : offsets[u + 1]]
        mask = masks[masked[u]] if masked[u] >= 0 else masks[0, :0]
        size = _keep_best(
            vectors, start, rows, users[u], unbounded, prior, weights[u], own, mask, nothing, k[u], 0, slots[u], best[u]
        )
        if 0 < k[u] == size:
            sure[u] = np.nextafter(best[u, 0], -np.float32(np.inf))
    for start in range(begin, end, TILE):
        tile, rows = start // TILE, min(TILE, end - start)
        _floored(popularity, start, rows, floor, prior)
        for first in range(0, m, 4):
            four = min(4, m - first)
            some = False
            for u in range(four):
                which = masked[first + u]
                left[u] = k[first + u] > 0 and (which < 0 or masks[which, start : start + rows].any())
                some |= left[u]
            if not some:
                continue
            for block in range(-(-rows // ROWS)):
                if four > 1:
                    block_sums_of_four(codes, tile * _BLOCKS + block, words, first, sums, 0, block * ROWS)
                else:
                    block_sums_of_one(codes, tile * _BLOCKS + block, words, first, sums, 0, block * ROWS)
            for u in range(four):
                if not left[u]:
                    continue
                to = first + u
                bar = best[to, 0] if 0 < k[to] == sizes[to] and not best[to, 0] < sure[to] else sure[to]
                above = _bound(
                    sums, u, shift[to], scaled[to], halves[to], scales, start, rows, prior, weights[to], bar, bounds
                )  # fmt: skip
                if above:
                    own, w = excluded[offsets[to] : offsets[to + 1]], weights[to]
                    mask = masks[masked[to]] if masked[to] >= 0 else masks[0, :0]
                    sizes[to] = _keep_best(
                        vectors,
                        start,
                        rows,
                        users[to],
                        bounds,
                        prior,
                        w,
                        own,
                        mask,
                        bar,
                        k[to],
                        sizes[to],
                        slots[to],
                        best[to],
                    )
    for u in range(m):
        sort_heap(best[u], slots[u], sizes[u])
    return sizes


@njit(cache=True, nogil=True)
def merged(part_slots: I64, part_best: F32, part_sizes: I64, k: I64, slots: I64, best: F32) -> I64:
    """The best of what p parts of the items gave m users; returns (m,) how many each got.

    part_slots, part_best (p, m, most), best first, part_sizes (p, m), parts in the order of their items; user u gets
    k[u] ≤ slots.shape[1] in slots[u] and best[u], best first, ties by lower slot.
    """
    parts, m = part_sizes.shape
    sizes, at = np.zeros(m, np.int64), np.empty(parts, np.int64)
    for u in range(m):
        at[:] = 0
        while sizes[u] < k[u]:
            found = -1
            for p in range(parts):
                if at[p] < part_sizes[p, u] and (found < 0 or part_best[p, u, at[p]] > part_best[found, u, at[found]]):
                    found = p
            if found < 0:
                break
            slots[u, sizes[u]], best[u, sizes[u]] = part_slots[found, u, at[found]], part_best[found, u, at[found]]
            at[found] += 1
            sizes[u] += 1
    return sizes


@njit(cache=True, nogil=True)
def _floored(popularity: F32, start: int, rows: int, floor: np.float32, prior: F32) -> None:
    """prior[i] = max(popularity[start + i], floor), or -inf where that is."""
    for i in range(rows):
        p = popularity[start + i]
        prior[i] = p if p == -np.inf else max(p, floor)


@njit(cache=True, nogil=True)
def _coarse_user(users: F32, u: int, tastes: I8) -> tuple[np.float32, np.int32, np.float32]:
    """Fills tastes[u] with codes p; (scale t, what codes of 128 + q add to q·p, what is added to t·(q·p) for a bound).

    Of a user with NaN or infinity the last is not finite: nothing is bounded.
    """
    dim = users.shape[1]
    largest, total, lost, added = np.float32(0.0), 0.0, 0.0, 0
    for j in range(dim):
        largest = max(largest, abs(users[u, j]))
        total += abs(users[u, j])
    most = max(largest, _SMALLEST)
    step = most / _LEVELS
    if np.isfinite(total):
        for j in range(dim):
            code = min(np.int64(127), max(np.int64(-127), np.int64(np.rint(users[u, j] / step))))
            tastes[u, j] = np.int8(code)
            added += int(code)
            lost += abs(users[u, j] - np.float64(step) * np.float64(code))
    half = total * (0.5 + _ROUNDING * (dim + 8)) + 127.0 * lost
    return step, np.int32(_ZERO * added), np.float32(half * (1.0 + 1e-6))


@njit(cache=True, nogil=True)
def _bound(
    sums: I32, of: int, shift: np.int32, scaled: np.float32, half: np.float32, scales: F32, start: int, rows: int,
    prior: F32, weight: np.float32, bar: np.float32, bounds: F32,
) -> int:  # fmt: skip
    """bounds[:rows] = what scores are at most, of sums[of] of codes; how many may be above the bar: none in most tiles.

    Rounding keeps order: adding the same prior to a bound and to a product can't put the product on top. A tie with the
    bar is not above it, as its slot is higher than those of the best so far. Whatever can't be compared may be above
    it: NaN, of a row or a prior, is for the row's own score to tell; a bar of NaN is none.
    """
    left = 0
    for i in range(rows):
        product = scaled * np.float32(sums[of, i] - shift)
        bounds[i] = scales[start + i] * (product + half) + _UNDERFLOW + weight * prior[i]
        left += not bounds[i] <= bar
    return left


@njit(cache=True, nogil=True)
def _keep_best(
    vectors: F32,
    start: int,
    rows: int,
    user: F32,
    bounds: F32,
    prior: F32,
    weight: np.float32,
    excluded: I64,
    mask: Bool,
    bar: np.float32,
    k: int,
    size: int,
    slots: I64,
    best: F32,
) -> int:
    """Items start, start + 1, … that may be above the bar into the heap of the `size` best so far, unless excluded or
    not of the mask, if there is one; returns its new size."""
    for i in range(rows):
        full = size == k
        if bounds[i] <= bar or (full and (k == 0 or bounds[i] <= best[0])):
            continue
        if prior[i] == -np.inf or (len(mask) and not mask[start + i]):
            continue
        s = _product(vectors, start + i, user) + weight * prior[i]
        if not np.isfinite(s) or (full and not s > best[0]):
            continue
        at = np.searchsorted(excluded, start + i)
        if at < len(excluded) and excluded[at] == start + i:
            continue
        if full:
            sift_down(best, slots, size, s, start + i)
        else:
            sift_up(best, slots, size, s, start + i)
            size += 1
    return size


@njit(cache=True, nogil=True, fastmath=_SUM_ORDER)
def _product(vectors: F32, slot: int, user: F32) -> np.float32:
    """vectors[slot]·user, as `native.scan.score_items` adds it up."""
    total = np.float32(0.0)
    for j in range(vectors.shape[1]):
        total += vectors[slot, j] * user[j]
    return total
