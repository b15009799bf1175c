"""What others would recommend, test then train. Not shipped.

Each takes user, item (n,) codes in stream order and answers ranks (n,): of event i's item among the items seen before
it minus the user's own, 1 + strictly better + half of the ties; inf for an item never seen before. A user without
history is ranked by decayed popularity, as everywhere here.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from numba import njit

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]
F32 = npt.NDArray[np.float32]
Bool = npt.NDArray[np.bool_]

HALF_LIFE = 1000.0
LENGTH = 20
"""Newest items of a user that itemKNN recommends from."""


@njit(cache=True)
def _rank(scores, known, own, target):  # type: ignore[no-untyped-def]
    if not known[target]:
        return np.inf
    better, ties = 0, 0
    for j in range(len(scores)):
        if known[j] and not own[j] and j != target:
            if scores[j] > scores[target]:
                better += 1
            elif scores[j] == scores[target]:
                ties += 1
    return 1.0 + better + 0.5 * ties


@njit(cache=True)
def _dot(x, y):  # type: ignore[no-untyped-def]
    total = 0.0
    for j in range(len(x)):
        total += x[j] * y[j]
    return total


@njit(cache=True, fastmath={"reassoc", "contract"})
def _products(rows, x):  # type: ignore[no-untyped-def]
    """Of every row and x; NumPy's @ would need SciPy here."""
    out = np.empty(len(rows))
    for i in range(len(rows)):
        total = 0.0
        for j in range(len(x)):
            total += rows[i, j] * x[j]
        out[i] = total
    return out


@njit(cache=True)
def popularity(user, item, users, items):  # type: ignore[no-untyped-def]
    """Decayed popularity, half-life 1000 events."""
    ranks, known, own = np.empty(len(user)), np.zeros(items, np.bool_), np.zeros((users, items), np.bool_)
    scores, weight = np.zeros(items), 1.0
    for n in range(len(user)):
        u, i = user[n], item[n]
        ranks[n] = _rank(scores, known, own[u], i)
        weight *= 2.0 ** (1.0 / HALF_LIFE)
        if weight > 1e100:
            scores /= weight
            weight = 1.0
        scores[i] += weight
        known[i] = own[u, i] = True
    return ranks


@njit(cache=True)
def markov(user, item, users, items):  # type: ignore[no-untyped-def]
    """First-order: how often j came next after the user's last item; ties by decayed popularity."""
    ranks, known, own = np.empty(len(user)), np.zeros(items, np.bool_), np.zeros((users, items), np.bool_)
    follows, last = np.zeros((items, items), np.float32), np.full(users, -1)
    popular = np.zeros(items)
    for n in range(len(user)):
        u, i = user[n], item[n]
        popular *= 0.5 ** (1.0 / HALF_LIFE)
        scores = 1e-7 * popular
        if last[u] >= 0:
            scores = scores + follows[last[u]]
        ranks[n] = _rank(scores, known, own[u], i)
        if last[u] >= 0:
            follows[last[u], i] += 1.0
        last[u] = i
        popular[i] += 1.0
        known[i] = own[u, i] = True
    return ranks


def item_knn(user: I64, item: I64, users: int, items: int) -> F64:
    """Cosine of co-occurrence in users' whole histories, summed over the last 20 items with weight .8^k (k = 0 the
    newest): the itemKNN of the literature, kept up to date event by event."""
    ranks: F64 = _item_knn(user, item, users, items, False)
    return ranks


def item_knn_near(user: I64, item: I64, users: int, items: int) -> F64:
    """The same, where items occur together only if at most 20 places lie between them in a user's history: another
    model, of what is liked in one sitting."""
    ranks: F64 = _item_knn(user, item, users, items, True)
    return ranks


@njit(cache=True)
def _item_knn(user, item, users, items, near):  # type: ignore[no-untyped-def]
    ranks, known, own = np.empty(len(user)), np.zeros(items, np.bool_), np.zeros((users, items), np.bool_)
    together, count = np.zeros((items, items), np.float32), np.zeros(items)
    recent, length = np.full((users, LENGTH), -1), np.zeros(users, np.int64)
    popular, scores = np.zeros(items), np.zeros(items)
    for n in range(len(user)):
        u, i = user[n], item[n]
        popular *= 0.5 ** (1.0 / HALF_LIFE)
        if length[u]:
            scores[:] = 0.0
            for k in range(min(length[u], LENGTH)):
                j = recent[u, (length[u] - 1 - k) % LENGTH]
                weight = 0.8**k / np.sqrt(count[j])
                for other in range(items):
                    scores[other] += weight * together[j, other]
            for other in range(items):
                scores[other] = scores[other] / np.sqrt(max(1.0, count[other])) + 1e-9 * popular[other]
        else:
            scores[:] = popular
        ranks[n] = _rank(scores, known, own[u], i)
        if not own[u, i] and near:
            for k in range(min(length[u], LENGTH)):
                j = recent[u, (length[u] - 1 - k) % LENGTH]
                together[i, j] += 1.0
                together[j, i] += 1.0
            count[i] += 1.0
        elif not own[u, i]:
            for j in range(items):
                if own[u, j]:
                    together[i, j] += 1.0
                    together[j, i] += 1.0
            count[i] += 1.0
        recent[u, length[u] % LENGTH] = i
        length[u] += 1
        popular[i] += 1.0
        known[i] = own[u, i] = True
    return ranks


@njit(cache=True)
def isgd(user, item, users, items):  # type: ignore[no-untyped-def]
    """ISGD (Vinagre, Jorge, Gama 2014): matrix factorization on positives alone, 10 factors, η .05, λ .01."""
    np.random.seed(0)
    ranks, known, own = np.empty(len(user)), np.zeros(items, np.bool_), np.zeros((users, items), np.bool_)
    p, q = np.random.normal(0.0, 0.1, (users, 10)), np.random.normal(0.0, 0.1, (items, 10))
    fresh, popular = np.ones(users, np.bool_), np.zeros(items)
    for n in range(len(user)):
        u, i = user[n], item[n]
        popular *= 0.5 ** (1.0 / HALF_LIFE)
        scores = popular.copy() if fresh[u] else -np.abs(1.0 - _products(q, p[u]))
        ranks[n] = _rank(scores, known, own[u], i)
        error = 1.0 - _dot(p[u], q[i])
        before = p[u].copy()
        p[u] += 0.05 * (error * q[i] - 0.01 * p[u])
        q[i] += 0.05 * (error * before - 0.01 * q[i])
        fresh[u] = False
        popular[i] += 1.0
        known[i] = own[u, i] = True
    return ranks


@njit(cache=True)
def bpr(user, item, users, items):  # type: ignore[no-untyped-def]
    """Online BPR (Rendle et al. 2009): 32 factors and item biases, the event and 9 uniform replays, 1 negative each."""
    np.random.seed(0)
    factors, rate, decay, replays = 32, 0.05, 0.002, 9
    ranks, known, own = np.empty(len(user)), np.zeros(items, np.bool_), np.zeros((users, items), np.bool_)
    p, q = np.random.normal(0.0, 0.1, (users, factors)), np.random.normal(0.0, 0.1, (items, factors))
    bias, fresh, popular = np.zeros(items), np.ones(users, np.bool_), np.zeros(items)
    seen, met = np.zeros(items, np.int64), 0
    for n in range(len(user)):
        u, i = user[n], item[n]
        popular *= 0.5 ** (1.0 / HALF_LIFE)
        scores = popular.copy() if fresh[u] else _products(q, p[u]) + bias
        ranks[n] = _rank(scores, known, own[u], i)
        popular[i] += 1.0
        if not known[i]:
            seen[met] = i
            met += 1
        known[i] = own[u, i] = True
        fresh[u] = False
        for again in range(1 + replays):
            m = n if again == 0 else np.random.randint(0, n + 1)
            a, b, c = user[m], item[m], seen[np.random.randint(0, met)]
            if own[a, c]:
                continue
            margin = _dot(p[a], q[b] - q[c]) + bias[b] - bias[c]
            push = rate / (1.0 + np.exp(margin))
            before = p[a].copy()
            p[a] += push * (q[b] - q[c]) - rate * decay * p[a]
            q[b] += push * before - rate * decay * q[b]
            q[c] -= push * before + rate * decay * q[c]
            bias[b] += push - rate * decay * bias[b]
            bias[c] -= push + rate * decay * bias[c]
    return ranks


def als(user: I64, item: I64, users: int, items: int) -> F64:
    """Implicit ALS (Hu, Koren, Volinsky 2008): 32 factors, α 10, λ 10, retrained every 1000 events from where it was;
    a user is folded in at each event from all of his items."""
    factors, alpha, penalty, every = 32, 10.0, 10.0, 1000
    rng = np.random.default_rng(0)
    p, q = rng.normal(0, 0.1, (users, factors)), rng.normal(0, 0.1, (items, factors))
    ranks, known = np.full(len(user), np.inf), np.zeros(items, np.bool_)
    own, popular = np.zeros((users, items), np.bool_), np.zeros(items)
    eye, gram = penalty * np.eye(factors), q.T @ q
    for n, (u, i) in enumerate(zip(user.tolist(), item.tolist(), strict=True)):
        if n and n % every == 0:
            for _ in range(1 if n > every else 5):
                p = _solve(own, q, alpha, eye)
                q = _solve(own.T, p, alpha, eye)
            q[~known] = 0.0
            gram = q.T @ q
        popular *= 0.5 ** (1.0 / HALF_LIFE)
        mine = q[own[u]]
        if len(mine) and n >= every:
            x = np.linalg.solve(gram + alpha * mine.T @ mine + eye, (1.0 + alpha) * mine.sum(axis=0))
            scores = q @ x
        else:
            scores = popular.copy()
        ranks[n] = _rank(scores, known, own[u], i)
        popular[i] += 1.0
        known[i] = own[u, i] = True
    return ranks


def _solve(own: Bool, other: F64, alpha: float, eye: F64) -> F64:
    """(n, factors) least-squares factors of each row of own (n, m), given those of its columns (m, factors)."""
    gram = other.T @ other + eye
    factors = other.shape[1]
    outer = (other[:, :, None] * other[:, None, :]).reshape(len(other), -1)
    weights = own.astype(np.float64)
    left = gram + alpha * (weights @ outer).reshape(-1, factors, factors)
    right = (1.0 + alpha) * (weights @ other)
    return np.asarray(np.linalg.solve(left, right[:, :, None])[:, :, 0])


PEERS: dict[str, Callable[[I64, I64, int, int], F64]] = {
    "popularity": popularity, "item_knn": item_knn, "item_knn_near": item_knn_near, "markov": markov, "isgd": isgd,
    "bpr": bpr, "als": als,
}  # fmt: skip


@njit(cache=True)
def biased_mf(user, item, rating, users, items):  # type: ignore[no-untyped-def]
    """RMSE of biased matrix factorization over all ratings in stream order, each predicted before it is learned."""
    np.random.seed(0)
    factors, rate, penalty = 10, 0.025, 0.0
    p, q = np.random.normal(0.0, 0.1, (users, factors)), np.random.normal(0.0, 0.1, (items, factors))
    mean, a, b, total = 0.0, np.zeros(users), np.zeros(items), 0.0
    for n in range(len(user)):
        u, i = user[n], item[n]
        error = mean + a[u] + b[i] + _dot(p[u], q[i]) - rating[n]
        total += error * error
        mean += (rating[n] - mean) / (n + 1)
        a[u] -= rate * (error + penalty * a[u])
        b[i] -= rate * (error + penalty * b[i])
        before = p[u].copy()
        p[u] -= rate * (error * q[i] + penalty * p[u])
        q[i] -= rate * (error * before + penalty * q[i])
    return np.sqrt(total / len(user))
