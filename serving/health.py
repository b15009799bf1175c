"""Liveness, readiness and metrics."""

from __future__ import annotations

import asyncio

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from serving.metrics import CONTENT_TYPE, exposition
from serving.negotiate import JSON
from serving.problems import Problem
from serving.schemas import Readiness
from serving.service import Service


class HealthRoutes:
    """Probes answer on the loop alone: a stuck store or a full queue must not fail liveness."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def live(self, request: Request) -> Response:  # noqa: ARG002
        """GET /livez: 200 while this process can recover by itself; 503 asks for a restart."""
        if self._service.crash is not None:
            raise Problem(503, "crashed", "the thread that follows the feed died: restart the process")
        return Response(b'{"status":"alive"}', media_type=JSON)

    async def ready(self, request: Request) -> Response:  # noqa: ARG002
        """GET /readyz: 200 if traffic should come here, 503 with reasons otherwise."""
        reasons = self._service.unready()
        if reasons:
            detail = f"not ready: {', '.join(reasons)}"
            # without the store's own words: this route needs no key, and they may name hosts
            raise Problem(503, "not-ready", detail, headers={"Retry-After": "1"}, reasons=reasons)
        degraded = ["store_down"] if self._service.store_down else []
        if self._service.freshness.model_refused:
            degraded.append("model_refused")
        return Response(msgspec.json.encode(Readiness("ready", degraded)), media_type=JSON)

    async def metrics(self, request: Request) -> Response:  # noqa: ARG002
        """GET /metrics, for Prometheus."""
        # not through `offload`: a full queue is when metrics are wanted most
        text = await asyncio.to_thread(exposition, self._service)
        return Response(text, headers={"Content-Type": CONTENT_TYPE})
