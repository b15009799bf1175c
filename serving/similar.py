"""Items near items."""

from __future__ import annotations

from functools import partial

import msgspec
import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from serving import ids, rows
from serving.body import BodyReader
from serving.features import wanted
from serving.negotiate import JSON
from serving.problems import not_found
from serving.ranking_schemas import Similar, SimilarRequest
from serving.recommend import check_ids, check_k, chosen, items_of
from serving.service import Live, Service
from serving.staleness import index_of, stale_headers


class SimilarRoutes:
    """`/v1/similar`: all of it from the mirror."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._body = BodyReader(SimilarRequest, service.settings.max_body_bytes)

    async def similar(self, request: Request) -> Response:
        """POST /v1/similar"""
        asked = await self._body.read(request)
        settings = self._service.settings
        check_k(asked.k, settings)
        check_ids(settings, item_ids=asked.item_ids, exclude=asked.exclude, candidates=asked.candidates)
        live = self._service.require_live()
        return await self._service.offload.run(partial(self._answer, live, asked))

    def _answer(self, live: Live, asked: SimilarRequest) -> Response:
        identities = ids.many(asked.item_ids, "item_ids")
        keys = ids.keys_of(identities)
        exclude, only = chosen(asked.exclude, asked.candidates)
        passing = wanted(live, asked.filter)
        given = rows.read(self._service, live, "item", keys)
        missing = [identities[i].decode() for i in np.flatnonzero(~given.found)]
        if len(missing) == len(identities):
            raise not_found("none of item_ids is known", missing=missing[:10])
        ranked = live.ranker.similar(
            given.vectors[given.found], exclude=np.concatenate([keys, exclude]), k=asked.k, only=only, wanted=passing
        )
        document = Similar(items_of(ranked), missing, index_of(self._service, live), live.version)
        headers = stale_headers(self._service, live)
        return Response(msgspec.json.encode(document), headers=headers, media_type=JSON)
