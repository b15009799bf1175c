"""Items for a user, or for each of several."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec
import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from embedding_store.contract import U64
from embedding_store.errors import StoreUnavailable
from embedding_store.ranking import Ranked
from native.features import FeatureValues, concatenate
from serving import ids
from serving.body import BodyReader
from serving.embeddings import too_many
from serving.features import given as given_features
from serving.floats import vector_json
from serving.negotiate import JSON
from serving.problems import Problem, invalid
from serving.ranking_schemas import Recommendations, RecommendBatchRequest, UserRecommendation
from serving.schemas import REFUSED, Choice, Recommendation, RecommendedItem, RecommendRequest
from serving.service import Live, Service
from serving.settings import ServingSettings
from serving.staleness import index_of, stale_headers
from serving.taste import Strategy, Taste, ranked_by, tastes_of
from serving.times import age_s, now_ms
from serving.together import Together

_LOT = 8
"""Requests answered by one pass: from four on it costs by the request, and its length is what the next lot waits."""


class RecommendRoutes:
    """`/v1/recommend`, and `:batch`. Reading users and ranking are one piece of work on a thread, for all who ask."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._together = Together(service.offload, self._answer_all, _LOT)
        self._body = BodyReader(RecommendRequest, service.settings.max_body_bytes)
        self._batch_body = BodyReader(RecommendBatchRequest, service.settings.max_body_bytes)

    async def recommend(self, request: Request) -> Response:
        """POST /v1/recommend"""
        asked = await self._body.read(request)
        self._check(asked)
        live = self._service.require_live()
        response, strategy = await self._together.run((live, asked))
        self._service.metrics.strategy(strategy)
        return response

    async def batch(self, request: Request) -> Response:
        """POST /v1/recommend:batch"""
        asked = await self._batch_body.read(request)
        self._check(asked)
        cap = self._service.settings.max_users
        if len(asked.user_ids) > cap:
            raise too_many("user_ids", len(asked.user_ids), cap)
        live = self._service.require_live()
        response, strategies = await self._service.offload.run(partial(self._answers, live, asked))
        for strategy in strategies:
            self._service.metrics.strategy(strategy)
        return response

    def _check(self, asked: Choice) -> None:
        settings = self._service.settings
        for name, why in REFUSED.items():
            if getattr(asked, name) not in (msgspec.UNSET, None):
                raise invalid(name, f"{name} is not taken: {why}")
        check_k(asked.k, settings)
        check_ids(settings, exclude=asked.exclude, candidates=asked.candidates)

    def _answer_all(self, asks: Sequence[tuple[Live, RecommendRequest]]) -> list[tuple[Response, Strategy] | Exception]:
        """One reading of all users, one pass over the items for those it can serve; an answer or an error for each."""
        answers: dict[int, tuple[Response, Strategy] | Exception] = {}
        wanted: dict[Live, list[tuple[int, Wanted]]] = {}
        for i, (live, asked) in enumerate(asks):
            try:
                user = ids.key_of(ids.from_json(asked.user_id, "user_id"))
                want = Wanted(
                    asked, user, *chosen(asked.exclude, asked.candidates), given_features(live, asked.features)
                )
                wanted.setdefault(live, []).append((i, want))
            except Problem as error:
                answers[i] = error
        for live, those in wanted.items():  # two only while a model replaces another
            wants = [want for _, want in those]
            users = np.array([want.user for want in wants], np.uint64)
            tastes = tastes_of(self._service, live, users, joined([want.request for want in wants]))
            for (i, _), taste, ranked in zip(those, tastes, ranked_all(live, wants, tastes), strict=True):
                answers[i] = ranked if isinstance(ranked, Exception) else self._answer(live, taste, *ranked)
        return [answers[i] for i in range(len(asks))]

    def _answer(self, live: Live, taste: Taste, strategy: Strategy, ranked: Ranked) -> tuple[Response, Strategy]:
        document = Recommendation(
            items=items_of(ranked),
            strategy=strategy,
            cold_start=taste.cold,
            user=taste.state,
            index=index_of(self._service, live),
            model_version=live.version,
        )
        headers = stale_headers(self._service, live, stale=taste.unreachable)
        return Response(msgspec.json.encode(document), headers=headers, media_type=JSON), strategy

    def _answers(self, live: Live, asked: RecommendBatchRequest) -> tuple[Response, list[Strategy]]:
        identities = ids.many(asked.user_ids, "user_ids")
        exclude, only = chosen(asked.exclude, asked.candidates)
        keys = ids.keys_of(identities)
        tastes = tastes_of(self._service, live, keys, given_features(live, asked.features, len(keys)))
        cold = [identity.decode() for identity, taste in zip(identities, tastes, strict=True) if taste.cold]
        if cold and asked.fallback == "error":
            detail = f"{len(cold)} of {len(tastes)} users have no history to recommend from, and fallback is error"
            raise Problem(404, "cold-user", detail, missing=cold[:10])
        wants = [Wanted(asked, key, exclude, only) for key in keys.tolist()]
        results, strategies = [], []
        for identity, taste, ranked in zip(identities, tastes, ranked_all(live, wants, tastes), strict=True):
            if isinstance(ranked, Exception):
                raise ranked
            strategy, best = ranked
            results.append(UserRecommendation(identity.decode(), items_of(best), strategy, taste.cold, taste.state))
            strategies.append(strategy)
        document = Recommendations(results, index_of(self._service, live), live.version)
        headers = stale_headers(self._service, live, stale=any(taste.unreachable for taste in tastes))
        return Response(msgspec.json.encode(document), headers=headers, media_type=JSON), strategies


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is wanted for one user, with keys for its ids."""

    asked: Choice
    user: int
    exclude: U64
    only: U64 | None
    request: FeatureValues | None = None  # (1,)

    def excluded(self, taste: Taste) -> U64:
        """Keys never to answer."""
        if not self.asked.exclude_seen or not len(taste.seen):
            return self.exclude
        return np.concatenate([self.exclude, taste.seen]) if len(self.exclude) else taste.seen


def joined(requests: Sequence[FeatureValues | None]) -> FeatureValues | None:
    """One row each; None where none has any."""
    if all(request is None for request in requests):
        return None
    return concatenate([FeatureValues.empty(1) if request is None else request for request in requests])


def ranked_all(
    live: Live, wants: Sequence[Wanted], tastes: Sequence[Taste]
) -> Iterator[tuple[Strategy, Ranked] | Problem | StoreUnavailable]:
    """For each user, in order. Those with a taste who choose among all items share passes of `_LOT`."""
    together = [i for i, want in enumerate(wants) if want.only is None and tastes[i].vector is not None]
    passed: dict[int, Ranked] = {}
    for start in range(0, len(together), _LOT):
        lot = together[start : start + _LOT]
        ranked = live.ranker.recommend_many(
            np.array([tastes[i].vector for i in lot], np.float32),
            np.array([tastes[i].prior for i in lot], np.float32),
            [wants[i].excluded(tastes[i]) for i in lot],
            [wants[i].asked.k for i in lot],
            [tastes[i].boost for i in lot],
        )
        passed.update(zip(lot, ranked, strict=True))
    for i, (want, taste) in enumerate(zip(wants, tastes, strict=True)):
        if i in passed:
            yield "personal", passed[i]
            continue
        try:
            strategy, vector = ranked_by(live, taste, want.asked.fallback)
        except (Problem, StoreUnavailable) as error:
            yield error
            continue
        exclude = want.excluded(taste)
        yield (
            strategy,
            live.ranker.recommend(
                vector, exclude=exclude, k=want.asked.k, only=want.only, prior=taste.prior, boost=taste.boost
            ),
        )


def check_k(k: int, settings: ServingSettings) -> None:
    """Raises Problem 422 over the cap."""
    if k > settings.max_k:
        raise invalid("k", f"k is at most {settings.max_k}, got {k}")


def check_ids(settings: ServingSettings, **lists: Sequence[str | int] | None) -> None:
    """Raises Problem 413 for the first list over the cap."""
    for name, given in lists.items():
        if given is not None and len(given) > settings.max_batch:
            raise too_many(name, len(given), settings.max_batch)


def chosen(exclude: Sequence[str | int], candidates: Sequence[str | int] | None) -> tuple[U64, U64 | None]:
    """Keys to leave out, and keys to choose from. Raises Problem 422."""
    only = None if candidates is None else ids.keys_of(ids.many(candidates, "candidates"))
    return ids.keys_of(ids.many(exclude, "exclude")), only


def named(key: int, identity: bytes) -> str:
    """An item's id as it is answered; rows without an id have integers, whose keys they are."""
    return identity.decode() or str(key)


def items_of(ranked: Ranked) -> list[RecommendedItem]:
    """Ranked items as they are answered."""
    now = now_ms()
    scores = vector_json(ranked.scores)[1:-1].split(b",")
    columns = zip(
        ranked.keys.tolist(), ranked.ids, scores, ranked.clock.tolist(), ranked.updated_ms.tolist(), strict=False
    )
    return [
        RecommendedItem(named(key, identity), msgspec.Raw(score), step, age_s(updated_ms, now))
        for key, identity, score, step, updated_ms in columns
    ]
