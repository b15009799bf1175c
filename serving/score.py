"""Scores of given items for a user."""

from __future__ import annotations

from functools import partial

import msgspec
import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from serving import ids, rows
from serving.body import BodyReader
from serving.features import given
from serving.floats import numbers_json
from serving.negotiate import JSON
from serving.ranking_schemas import ScoreRequest, Scores
from serving.recommend import check_ids
from serving.service import Live, Service
from serving.staleness import index_of, stale_headers
from serving.taste import ranked_by, tastes_of
from serving.times import ages_s, now_ms


class ScoreRoutes:
    """`/v1/score`: what a re-ranker asks."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._body = BodyReader(ScoreRequest, service.settings.max_body_bytes)

    async def score(self, request: Request) -> Response:
        """POST /v1/score"""
        asked = await self._body.read(request)
        check_ids(self._service.settings, item_ids=asked.item_ids)
        live = self._service.require_live()
        return await self._service.offload.run(partial(self._answer, live, asked))

    def _answer(self, live: Live, asked: ScoreRequest) -> Response:
        identity = ids.from_json(asked.user_id, "user_id")
        keys = ids.keys_of(ids.many(asked.item_ids, "item_ids"))
        (taste,) = tastes_of(self._service, live, ids.keys_of([identity]), given(live, asked.features))
        strategy, vector = ranked_by(live, taste, asked.fallback)
        found = rows.read(self._service, live, "item", keys)
        scores = live.ranker.score(vector, keys, prior=taste.prior, boost=taste.boost)
        document = Scores(
            scores=[
                None if number is None else msgspec.Raw(number)
                for number in numbers_json(np.where(found.found, scores, np.float32(np.nan)))
            ],
            found=found.found.tolist(),
            age_s=ages_s(found.updated_ms, found.found, now_ms()),
            strategy=strategy,
            cold_start=taste.cold,
            user=taste.state,
            index=index_of(self._service, live),
            model_version=live.version,
        )
        headers = stale_headers(self._service, live, stale=taste.unreachable)
        return Response(msgspec.json.encode(document), headers=headers, media_type=JSON)
