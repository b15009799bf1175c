"""Transitions: how near a user's items are to one another, what came after them, and the gradient of what that is
worth."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from native.mixing import mix

F32 = npt.NDArray[np.float32]
I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]
Bool = npt.NDArray[np.bool_]
Entries = npt.NDArray[np.void]


_NEVER = np.float32(-1e30)
"""Score of a column left out: its exponential is an exact zero."""


@njit(cache=True, nogil=True)
def nearness(items: U64, lengths: I64, times_ms: I64, recency: float, near_ms: float, least: float, out: F32) -> None:
    """out[i, k] = recency^k / (1 + (times_ms[i, 0] − times_ms[i, k])² / near_ms²); 0 below `least`, beyond lengths[i],
    and for an item that stands at an earlier place too.

    items (n, r or more), newest first, lengths (n,), times_ms and out (n, r).
    """
    for i in range(out.shape[0]):
        decay = 1.0
        for k in range(out.shape[1]):
            out[i, k] = 0.0
            if k < lengths[i]:
                age = (times_ms[i, 0] - times_ms[i, k]) / near_ms
                weight = decay / (1.0 + age * age)
                if weight >= least:
                    out[i, k] = weight
                for before in range(k):
                    if items[i, before] == items[i, k]:
                        out[i, k] = 0.0
            decay *= recency


@njit(cache=True, nogil=True)
def followers(
    bounds: I64, entries: Entries, rows: I64, near: F32, offsets: I64, keys: U64, direct: F32, share: F32
) -> int:
    """What came after the newest items of each user, and how often; returns how many pairs of user and item there are.

    Sequence j is entries[bounds[j]:bounds[j + 1]], of weight 1 where it came next. rows (n, r) sequences of each user's
    items, newest first, -1 for none, near (n, r) their weights. Fills offsets (n + 1,), and up to offsets[n] keys,
    direct (shares among the entries of weight 1 of the first sequence) and share (Σ_k near_k · share of the summed
    weight of sequence k). All three must hold as many as the sequences of all rows together.
    """
    longest = 0
    for i in range(rows.shape[0]):
        entries_of = 0
        for k in range(rows.shape[1]):
            if rows[i, k] >= 0:
                entries_of += bounds[rows[i, k] + 1] - bounds[rows[i, k]]
        longest = max(longest, entries_of)
    capacity = 16
    while capacity < 2 * longest:
        capacity *= 2
    places, used = np.zeros(capacity, np.int64), np.empty(longest, np.int64)  # number of the pair + 1
    mask = np.uint64(capacity - 1)
    n = 0
    for i in range(rows.shape[0]):
        offsets[i], held = n, 0
        for k in range(rows.shape[1]):
            j = rows[i, k]
            if j < 0:
                continue
            total, firsts = 0.0, 0.0
            for e in range(bounds[j], bounds[j + 1]):
                total += entries[e].weight
                if entries[e].weight == np.float32(1.0):
                    firsts += 1.0
            if total <= 0.0:
                continue
            each = near[i, k] / total
            one = 1.0 / firsts if k == 0 and firsts > 0.0 else 0.0
            for e in range(bounds[j], bounds[j + 1]):
                entry = entries[e]
                at = mix(entry.item) & mask
                while places[at] != 0 and keys[places[at] - 1] != entry.item:
                    at = (at + np.uint64(1)) & mask
                if places[at] == 0:
                    keys[n], direct[n], share[n] = entry.item, 0.0, 0.0
                    n += 1
                    places[at] = n
                    used[held] = at
                    held += 1
                pair = places[at] - 1
                share[pair] += each * entry.weight
                if entry.weight == np.float32(1.0):
                    direct[pair] += one
        for h in range(held):
            places[used[h]] = 0
    offsets[rows.shape[0]] = n
    return n


@njit(cache=True, nogil=True)
def add_prior(scores: F32, prior: F32, popularity: F32, mask: Bool) -> None:
    """scores[i, j] += prior[i]·popularity[j] over the mask, a number below all others elsewhere.

    scores, mask (rows, columns); prior (rows,), popularity (columns,).
    """
    rows, columns = scores.shape
    for i in range(rows):
        row, kept, weight = scores[i], mask[i], prior[i]
        for j in range(columns):
            row[j] = row[j] + weight * popularity[j] if kept[j] else _NEVER


@njit(cache=True, nogil=True)
def transition_gradients(
    scores: F32, mask: Bool, bias: F32, own: I64, column: I64, starts: I64, stops: I64, items: I64, values: F32,
    worth: F32, trust: F32, weight: F32, scratch: F32, out: F32,
) -> None:  # fmt: skip
    """out[:, i] = weight_i · ∂/∂(g_0i, g_1i, t_i) (ln Σ_j exp l_ij − l_i,own_i),
    l_ij = t_i·(scores_ij + Σ_v g_vi·f_vij) + bias_j.

    scores, mask (n, m), of which the own columns (n,) are unmasked, sums are over the mask; bias, column (m,) item
    number of each column; f_vij the value of item column[j] among items and values[v, starts[i]:stops[i]], 0 where it
    isn't there; worth g (2, n), trust t, weight (n,). scratch (2, item numbers): zeros, and left so. Fills out (3, n).
    """
    zero = np.float32(0.0)
    for i in range(scores.shape[0]):
        g, h, t = worth[0, i], worth[1, i], trust[i]
        for e in range(starts[i], stops[i]):
            scratch[0, items[e]], scratch[1, items[e]] = values[0, e], values[1, e]
        top = -np.float32(np.inf)
        for j in range(scores.shape[1]):
            if mask[i, j]:
                c = column[j]
                top = max(top, t * (scores[i, j] + g * scratch[0, c] + h * scratch[1, c]) + bias[j])
        total, first, second, mean = zero, zero, zero, zero
        for j in range(scores.shape[1]):
            if mask[i, j]:
                c = column[j]
                score = scores[i, j] + g * scratch[0, c] + h * scratch[1, c]
                share = np.exp(t * score + bias[j] - top)
                total += share
                first += share * scratch[0, c]
                second += share * scratch[1, c]
                mean += share * score
        c = column[own[i]]
        x, y = scratch[0, c], scratch[1, c]
        out[0, i] = weight[i] * t * (first / total - x)
        out[1, i] = weight[i] * t * (second / total - y)
        out[2, i] = weight[i] * (mean / total - scores[i, own[i]] - g * x - h * y)
        for e in range(starts[i], stops[i]):
            scratch[0, items[e]], scratch[1, items[e]] = zero, zero
