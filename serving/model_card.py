"""What is being served."""

from __future__ import annotations

from functools import partial

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from embedding_store.errors import StoreUnavailable
from serving.negotiate import JSON
from serving.schemas import FreshnessState, Model, TableState
from serving.service import Live, Service
from serving.staleness import index_of, stale_headers
from serving.times import iso


class ModelRoutes:
    """`/v1/model`."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def model(self, request: Request) -> Response:  # noqa: ARG002 - the router passes it
        """GET /v1/model"""
        return await self._service.offload.run(partial(self._answer, self._service.require_live()))

    def _answer(self, live: Live) -> Response:
        delays = self._service.freshness.delays()
        tables = self._tables(live)
        document = Model(
            version=live.version,
            spec=live.model.model_dump(mode="json"),
            dim=live.model.output_dim,
            step=live.mirror.clock,
            tables=tables,
            freshness=FreshnessState(delays.samples, delays.p50_ms, delays.p99_ms),
            index=index_of(self._service, live),
        )
        headers = stale_headers(self._service, live, stale=tables is None)
        return Response(msgspec.json.encode(document), headers=headers, media_type=JSON)

    def _tables(self, live: Live) -> dict[str, TableState] | None:
        if self._service.store_down:
            return None
        try:
            return {name: self._state(live, name) for name in live.model.tables()}
        except StoreUnavailable:
            return None

    def _state(self, live: Live, table: str) -> TableState:
        shards = live.store.status(table)
        return TableState(
            rows=sum(shard.rows for shard in shards),
            shards=len(shards),
            step=min(shard.clock for shard in shards),
            as_of=iso(min(shard.event_time_ms for shard in shards)),
        )
