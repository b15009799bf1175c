"""Why an item stands where it stands for a user."""

from __future__ import annotations

import math
from functools import partial
from typing import Literal

import msgspec
import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from embedding_store import explaining
from embedding_store.contract import F32
from native.features import ITEM, USER, FeatureValues
from serving import features, ids
from serving.floats import numbers_json
from serving.negotiate import JSON
from serving.problems import not_found, unavailable
from serving.ranking_schemas import (
    ClockPart,
    Contribution,
    Explanation,
    FeaturePart,
    ItemParts,
    ItemState,
    ScoreParts,
)
from serving.recommend import named
from serving.rows import finite
from serving.schemas import Score
from serving.service import Live, Service
from serving.staleness import index_of, stale_headers
from serving.taste import state_of
from serving.times import age_s, now_ms


class ExplainRoutes:
    """`/v1/explain`: for people, not for the hot path."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def explain(self, request: Request) -> Response:
        """GET /v1/explain?user_id=&item_id=&features="""
        query = request.scope["query_string"]
        user, item = ids.from_query(query, "user_id"), ids.from_query(query, "item_id")
        live = self._service.require_live()
        given = features.from_query(live, request.query_params.get("features"))
        return await self._service.offload.run(partial(self._answer, live, user, item, given))

    def _answer(self, live: Live, user: bytes, item: bytes, given: FeatureValues | None) -> Response:
        if self._service.store_down:
            raise unavailable("store-down", "users are read from the store, which can't be reached: retry later")
        why = explaining.explain(live.model, live.ranker, ids.key_of(user), ids.key_of(item), given)
        row = finite(why.item, "item", self._service.metrics)
        if not row.found[0]:
            raise not_found(f"no item has the id {item.decode()!r}", id=item.decode())
        if not np.isfinite(why.users.vectors).all():
            self._service.metrics.nonfinite("user", 1)
        document = Explanation(
            user_id=user.decode(),
            item_id=item.decode(),
            score=_number(why.score),
            rank=why.rank if math.isfinite(why.rank) else None,
            seen=why.seen,
            strategy="personal" if why.personal else "popular",
            cold_start=not why.personal,
            parts=_parts(live, why),
            history=_history(why),
            user=state_of(why.users),
            item=ItemState(int(row.clock[0]), age_s(int(row.updated_ms[0]), now_ms()), int(row.count[0])),
            index=index_of(self._service, live),
            model_version=live.version,
        )
        headers = stale_headers(self._service, live)
        return Response(msgspec.json.encode(document), headers=headers, media_type=JSON)


def _parts(live: Live, why: explaining.Explanation) -> ScoreParts:
    clocks = zip(live.model.clocks, _numbers(why.clocks), strict=False)  # none at all where it is by popularity
    return ScoreParts(
        clocks=[ClockPart(recency, score) for recency, score in clocks if score is not None],
        user_id_vector=_number(why.own) if why.personal and live.model.user_id_vector else None,
        dense_bias=_number(why.bias) if why.personal and live.model.dense_layers else None,
        popularity=_number(why.popularity),
        features=_features(live, why.features),
        item=_item(live, why.of_item),
        transition=_number(why.transition) if why.personal and live.model.successors else None,
    )


def _features(live: Live, parts: dict[int, float]) -> list[FeaturePart]:
    declared = live.model.feature_schema.declared
    found = []
    for number, part in sorted(parts.items()):
        side = declared[number].side
        score = _number(part)
        if score is not None:  # a row that is not finite would have made the vector so
            found.append(FeaturePart(declared[number].name, _OF.get(side, "request"), score))
    return found


def _item(live: Live, parts: explaining.ItemParts | None) -> ItemParts | None:
    if parts is None:
        return None
    bias = _number(parts.bias) if live.model.dense_layers else None
    return ItemParts(_number(parts.row), _features(live, parts.features), bias)


_OF: dict[int, Literal["item", "user"]] = {ITEM: "item", USER: "user"}


def _history(why: explaining.Explanation) -> list[Contribution]:
    columns = zip(why.keys.tolist(), why.ids, why.times.tolist(), _numbers(why.contributions), strict=True)
    return [
        Contribution(named(key, identity), times, score)
        for key, identity, times, score in columns
        if score is not None  # a row that is not finite would have made the user's vector so
    ]


def _number(value: float) -> Score | None:
    return _numbers(np.array([value], np.float32))[0]


def _numbers(values: F32) -> list[Score | None]:
    return [None if number is None else msgspec.Raw(number) for number in numbers_json(values)]
