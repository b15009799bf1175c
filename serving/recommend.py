"""Items for a user."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from typing import Literal

import msgspec
import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from embedding_store.contract import F32, U64
from embedding_store.errors import StoreUnavailable
from embedding_store.ranking import Ranked, Users
from serving import ids
from serving.body import BodyReader
from serving.embeddings import too_many
from serving.floats import vector_json
from serving.negotiate import JSON
from serving.problems import Problem, invalid
from serving.schemas import Recommendation, RecommendedItem, RecommendRequest, UserState
from serving.service import Live, Service
from serving.staleness import index_of, stale_headers
from serving.times import age_s, now_ms

log = logging.getLogger(__name__)

_NONE = np.zeros(0, np.uint64)
_MEAN_OF = 100  # most popular items whose mean stands for a user nothing is known of


@dataclass(frozen=True, slots=True)
class Taste:
    """What is known of a user when ranking."""

    vector: F32 | None  # None: rank by popularity
    seen: U64
    state: UserState | None
    cold: bool
    unreachable: bool = False  # the store could not be asked
    prior: float | None = None  # weight of log popularity; None: what the model begins with


class RecommendRoutes:
    """`/v1/recommend`. Reading the user and ranking are one piece of work on a thread."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._body = BodyReader(RecommendRequest, service.settings.max_body_bytes)

    async def recommend(self, request: Request) -> Response:
        """POST /v1/recommend"""
        asked = await self._body.read(request)
        self._check(asked)
        live = self._service.require_live()
        response, strategy = await self._service.offload.run(partial(self._answer, live, asked))
        self._service.metrics.strategy(strategy)
        return response

    def _check(self, asked: RecommendRequest) -> None:
        settings = self._service.settings
        for name in ("features", "filter"):
            if getattr(asked, name) not in (msgspec.UNSET, None):
                raise invalid(name, f"{name} is not supported yet: leave it out")
        if asked.k > settings.max_k:
            raise invalid("k", f"k is at most {settings.max_k}, got {asked.k}")
        for name in ("exclude", "candidates"):
            given = getattr(asked, name)
            if given is not None and len(given) > settings.max_batch:
                raise too_many(name, len(given), settings.max_batch)

    def _answer(self, live: Live, asked: RecommendRequest) -> tuple[Response, str]:
        identity = ids.from_json(asked.user_id, "user_id")
        exclude = ids.keys_of(ids.many(asked.exclude, "exclude"))
        only = None if asked.candidates is None else ids.keys_of(ids.many(asked.candidates, "candidates"))
        taste = self._taste(live, ids.keys_of([identity]))
        if asked.exclude_seen and len(taste.seen):
            exclude = np.concatenate([exclude, taste.seen])
        strategy: Literal["personal", "popular", "mean"] = "personal"
        vector = taste.vector
        if vector is None:
            strategy, vector = self._fallback(live, asked, taste)
        ranked = live.ranker.recommend(vector, exclude=exclude, k=asked.k, only=only, prior=taste.prior)
        document = Recommendation(
            items=_items(ranked),
            strategy=strategy,
            cold_start=taste.cold,
            user=taste.state,
            index=index_of(self._service, live),
            model_version=live.version,
        )
        headers = stale_headers(self._service, live, stale=taste.unreachable)
        return Response(msgspec.json.encode(document), headers=headers, media_type=JSON), strategy

    def _taste(self, live: Live, keys: U64) -> Taste:
        """What the store knows of one user. While it is down nobody is known, and nobody is called cold."""
        unreachable = Taste(None, _NONE, None, cold=False, unreachable=True)
        if self._service.store_down:
            return unreachable
        try:
            users = live.ranker.users(keys)
        except StoreUnavailable as error:
            log.warning("recommending without the user's history: %s", ascii(str(error)))
            return unreachable
        vector = users.vectors[0]
        sound = bool(np.isfinite(vector).all())
        if not sound:
            self._service.metrics.nonfinite("user", 1)
        warm = bool(users.warm[0]) and sound
        prior = float(users.prior[0])
        return Taste(vector if warm else None, users.seen_keys, _state(users), cold=not warm, prior=prior)

    def _fallback(
        self, live: Live, asked: RecommendRequest, taste: Taste
    ) -> tuple[Literal["popular", "mean"], F32 | None]:
        if asked.fallback == "error":
            if taste.unreachable:
                raise StoreUnavailable("the user's history can't be read")
            raise Problem(404, "cold-user", "the user has no history to recommend from, and fallback is error")
        if asked.fallback == "mean" and not taste.unreachable:
            vector = self._mean_taste(live)
            if vector is not None:
                return "mean", vector
        return "popular", None

    def _mean_taste(self, live: Live) -> F32 | None:
        """Mean output of the most popular items: about what an average history pools to. None where there is none."""
        popular = live.ranker.recommend(None, exclude=_NONE, k=_MEAN_OF)
        vectors = live.mirror.items(popular.keys).vectors
        vectors = vectors[np.isfinite(vectors).all(axis=1)]
        return vectors.mean(axis=0, dtype=np.float32) if len(vectors) else None


def _state(users: Users) -> UserState | None:
    if not users.found[0]:
        return None
    return UserState(int(users.clock[0]), age_s(int(users.updated_ms[0]), now_ms()), int(users.count[0]))


def _items(ranked: Ranked) -> list[RecommendedItem]:
    now = now_ms()
    scores = vector_json(ranked.scores)[1:-1].split(b",")
    columns = zip(
        ranked.keys.tolist(), ranked.ids, scores, ranked.clock.tolist(), ranked.updated_ms.tolist(), strict=False
    )
    return [
        RecommendedItem(identity.decode() or str(key), msgspec.Raw(score), step, age_s(updated_ms, now))
        for key, identity, score, step, updated_ms in columns
    ]
