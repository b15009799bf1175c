"""What is known of users when items are ranked for them, and what is done for those nothing is known of."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Literal

import numpy as np

from embedding_store.contract import F32, U64
from embedding_store.errors import StoreUnavailable
from embedding_store.ranking import Users
from embedding_store.transitions import Boosts
from native.features import FeatureValues
from serving.problems import Problem
from serving.schemas import UserState
from serving.service import Live, Service
from serving.times import age_s, now_ms

log = logging.getLogger(__name__)

NONE = np.zeros(0, np.uint64)
_MEAN_OF = 100  # most popular items whose mean stands for a user nothing is known of
Fallback = Literal["popular", "mean", "error"]
Strategy = Literal["personal", "popular", "mean"]


@dataclass(frozen=True, slots=True)
class Taste:
    """What is known of a user when ranking."""

    vector: F32 | None  # None: rank by popularity
    seen: U64
    state: UserState | None
    cold: bool
    unreachable: bool = False  # the store could not be asked
    prior: float | None = None  # weight of log popularity; None: what the model begins with
    boost: Boosts | None = None  # what transitions from his newest items add to scores


def tastes_of(service: Service, live: Live, keys: U64, request: FeatureValues | None = None) -> list[Taste]:
    """What the store knows of users, in one read. While it is down nobody is known, and nobody is called cold.

    request: a row for each, of the features of their requests.
    """
    unreachable = Taste(None, NONE, None, cold=False, unreachable=True)
    if service.store_down:
        return [unreachable] * len(keys)
    try:
        users = live.ranker.users(keys, request)
    except StoreUnavailable as error:
        log.warning("recommending without the users' histories: %s", ascii(str(error)))
        return [unreachable] * len(keys)
    sound = np.isfinite(users.vectors).all(axis=1)
    if not sound.all():
        service.metrics.nonfinite("user", int((~sound).sum()))
    warm = users.warm & sound
    return [_taste(users, i, bool(warm[i])) for i in range(len(keys))]


def _taste(users: Users, i: int, warm: bool) -> Taste:
    seen = users.seen_keys[users.seen_offsets[i] : users.seen_offsets[i + 1]]
    vector = users.vectors[i] if warm else None
    return Taste(
        vector,
        seen,
        state_of(users, i),
        cold=not warm,
        prior=float(users.prior[i]),
        boost=users.boost(i) if warm else None,
    )


def state_of(users: Users, i: int = 0) -> UserState | None:
    """The row of user i as it was read; None where there is none."""
    if not users.found[i]:
        return None
    return UserState(int(users.clock[i]), age_s(int(users.updated_ms[i]), now_ms()), int(users.count[i]))


def ranked_by(live: Live, taste: Taste, fallback: Fallback) -> tuple[Strategy, F32 | None]:
    """The vector to rank by, None for popularity. Raises Problem 404 and StoreUnavailable where fallback is error."""
    if taste.vector is not None:
        return "personal", taste.vector
    if fallback == "error":
        if taste.unreachable:
            raise StoreUnavailable("the user's history can't be read")
        raise Problem(404, "cold-user", "the user has no history to recommend from, and fallback is error")
    if fallback == "mean" and not taste.unreachable:
        vector = _mean_taste(live)
        if vector is not None:
            return "mean", vector
    return "popular", None


def _mean_taste(live: Live) -> F32 | None:
    """Mean output of the most popular items: about what an average history pools to. None where there is none."""
    popular = live.ranker.recommend(None, exclude=NONE, k=_MEAN_OF)
    vectors = live.mirror.items(popular.keys).vectors
    vectors = vectors[np.isfinite(vectors).all(axis=1)]
    return vectors.mean(axis=0, dtype=np.float32) if len(vectors) else None
