"""Made-up streams whose laws are known: what defaults are chosen on, before any real data is looked at.

Users have a taste over clusters of items and drift from one cluster to another; within a cluster items have
popularities that drift too. Each stream stresses something else; all come from one seed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]


class Made(NamedTuple):
    """n positive events in stream order."""

    users: I64
    items: I64
    n_users: int
    n_items: int


@dataclass(frozen=True, slots=True)
class Law:
    """How a stream comes about."""

    events: int = 20_000
    users: int = 600
    items: int = 1200
    clusters: int = 20
    own: float = 0.75  # share of events inside the user's present cluster; the others are anything popular
    moves: float = 0.03  # chance, per event, that the user moves on to another cluster
    next_item: float = 0.3  # share of own events that follow a fixed chain from the last item
    drift: float = 0.0  # chance, per event, that one item's popularity is drawn anew
    repeats: float = 0.0  # chance to take something again
    activity: float = 0.7  # exponent of users' activity: 0 all alike
    skew: float = 0.8  # exponent of items' popularity


LAWS = {
    "plain": Law(),
    "drifting popularity": Law(drift=0.05, own=0.6),
    "repeat purchases": Law(repeats=0.35, users=400),
    "small catalogue": Law(items=150, clusters=8, users=2500, activity=0.3),
    "large catalogue": Law(items=5000, clusters=60, users=800),
    "short users": Law(users=4000, activity=0.2, items=800),
    "long users": Law(users=80, items=2500, clusters=25, activity=0.2, moves=0.015),
}

HARD = {"chains": Law(moves=0.25, next_item=0.5)}
"""What the model is not made for: half of a stream is a walk through fixed chains, which one vector an item for both
ends of a step can't tell from walking back. First-order Markov is right there by construction."""


def make(law: Law, seed: int = 0) -> Made:
    """The stream of a law. A user takes nothing twice but for `repeats`."""
    rng = np.random.default_rng(seed)
    size = -(-law.items // law.clusters)
    cluster_of = np.minimum(np.arange(law.items) // size, law.clusters - 1)
    popular = (1.0 + rng.permutation(law.items)) ** -law.skew
    chain = _chain(cluster_of, rng)
    active = np.cumsum((1.0 + np.arange(law.users)) ** -law.activity)
    taste, last = rng.integers(0, law.clusters, law.users), np.full(law.users, -1)
    taken: list[list[int]] = [[] for _ in range(law.users)]
    has = np.zeros((law.users, law.items), np.bool_)
    members = [np.flatnonzero(cluster_of == c) for c in range(law.clusters)]
    users, items = np.empty(law.events, np.int64), np.empty(law.events, np.int64)
    n = 0
    while n < law.events:
        if rng.random() < law.drift:
            popular[rng.integers(0, law.items)] = (1.0 + rng.integers(0, law.items)) ** -law.skew
        user = int(np.searchsorted(active, rng.random() * active[-1]))
        if rng.random() < law.moves:
            taste[user] = rng.integers(0, law.clusters)
        if taken[user] and rng.random() < law.repeats:
            item = taken[user][-1 - int(len(taken[user]) * rng.random() ** 2)]
        elif rng.random() < law.own:
            item = int(chain[last[user]]) if last[user] >= 0 and rng.random() < law.next_item else -1
            if item < 0 or cluster_of[item] != taste[user]:
                item = _drawn(members[taste[user]], popular, rng)
        else:
            item = _drawn(None, popular, rng)
        if has[user, item] and not law.repeats:
            continue
        has[user, item] = True
        taken[user].append(item)
        last[user] = item
        users[n], items[n] = user, item
        n += 1
    return Made(users, items, law.users, law.items)


def _chain(cluster_of: I64, rng: np.random.Generator) -> I64:
    """What comes after each item: a cycle through its cluster."""
    chain = np.empty(len(cluster_of), np.int64)
    for c in np.unique(cluster_of).tolist():
        order = rng.permutation(np.flatnonzero(cluster_of == c))
        chain[order] = np.roll(order, -1)
    return chain


def _drawn(members: I64 | None, popular: npt.NDArray[np.float64], rng: np.random.Generator) -> int:
    weights = np.cumsum(popular if members is None else popular[members])
    at = int(np.searchsorted(weights, rng.random() * weights[-1]))
    return at if members is None else int(members[at])


class Shop(NamedTuple):
    """n positive events in stream order, with what is known beside the ids."""

    users: I64
    items: I64
    genre: I64  # (n,) of the item: its cluster
    tv: npt.NDArray[np.bool_]  # (n,) the device of the request


def make_shop(
    shelf: int, renewed: int, events: int = 6000, users: int = 250, clusters: int = 12, seed: int = 0
) -> Shop:
    """A user likes two clusters: one of the first half, which is watched on tv, and one of the other, which is not.

    Of each cluster only the `shelf` newest items are offered. renewed: events after which a new one comes, so that an
    item has few events before it is gone; 0: the catalogue stays.
    """
    rng = np.random.default_rng(0)
    offered = [list(range(c * shelf, (c + 1) * shelf)) for c in range(clusters)]
    genre_of = {item: c for c, items in enumerate(offered) for item in items}
    half = clusters // 2
    taste = np.stack([half + rng.integers(0, half, users), rng.integers(0, half, users)], axis=1)
    has: set[tuple[int, int]] = set()
    made = Shop(*(np.empty(events, np.int64) for _ in range(3)), np.empty(events, np.bool_))
    n = 0
    while n < events:
        user, tv = int(rng.integers(0, users)), bool(rng.random() < 0.5)
        cluster = int(taste[user, int(tv)]) if rng.random() < 0.85 else int(rng.integers(0, clusters))
        item = offered[cluster][int(rng.integers(0, shelf))]
        if (user, item) in has:
            continue
        has.add((user, item))
        made.users[n], made.items[n], made.genre[n], made.tv[n] = user, item, genre_of[item], tv
        n += 1
        if renewed and n % renewed == 0:
            on = int(rng.integers(0, clusters))
            fresh = len(genre_of)
            genre_of[fresh] = on
            offered[on] = [*offered[on][1:], fresh]
    return made
