"""`/dashboard`: one self-contained page, and the stream of server-sent events that feeds it once a second."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator
from importlib.resources import files

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from serving.dashboard.looking import Look, Looker
from serving.metrics import ROW_AGES
from serving.problems import unavailable
from serving.service import Service

log = logging.getLogger(__name__)

_EVERY_S = 1.0
_KEPT = 600  # looks a page that is opened begins with
_MAX_VIEWERS = 16
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; frame-ancestors 'none'"
)


class DashboardRoutes:
    """One look a second however many watch; none while nobody does."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._looker = Looker(service)
        self._looks: deque[Look] = deque(maxlen=_KEPT)
        self._looking: asyncio.Task[None] | None = None
        self._new = asyncio.Condition()
        self._viewers = 0
        self._page = page()

    async def show(self, request: Request) -> Response:  # noqa: ARG002 - the router passes it
        """GET /dashboard"""
        return Response(self._page, media_type="text/html", headers={"Content-Security-Policy": _POLICY})

    async def events(self, request: Request) -> Response:  # noqa: ARG002
        """GET /dashboard/events"""
        if self._viewers >= _MAX_VIEWERS:
            raise unavailable("busy", f"{self._viewers} dashboards are open, which is the most: close one")
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(self._stream(), media_type="text/event-stream", headers=headers)

    async def _stream(self) -> AsyncIterator[bytes]:
        """`begin` with what was seen lately, then a `look` a second, with `items` where the map shows others."""
        self._viewers += 1
        try:
            if self._looking is None:
                self._looking = asyncio.create_task(self._look_on())
                self._looking.add_done_callback(_tell)
            past = [msgspec.structs.replace(look, map=None) for look in self._looks]
            yield _event("begin", {"age_bounds": list(ROW_AGES), "looks": past})
            sampled = last = None
            while not self._service.draining:
                async with self._new:
                    await self._new.wait()
                if not self._is_looking:  # it failed, or the service ends: the page says so, and asks again
                    return
                if not self._looks or self._looks[-1] is last:
                    continue
                last = self._looks[-1]
                if self._looker.sampled is not None and self._looker.sampled is not sampled:
                    sampled = self._looker.sampled
                    yield _event("items", sampled.ids)
                yield _event("look", last)
        finally:
            self._viewers -= 1

    @property
    def _is_looking(self) -> bool:
        return self._looking is not None

    async def _look_on(self) -> None:
        """Until nobody watches, the service ends, or a look fails: then the viewers' streams end, too."""
        try:
            while self._viewers and not self._service.draining:
                self._looks.append(await asyncio.to_thread(self._looker.look))
                async with self._new:
                    self._new.notify_all()
                await asyncio.sleep(_EVERY_S)
        finally:
            self._looking = None
            async with self._new:
                self._new.notify_all()


def _tell(looking: asyncio.Task[None]) -> None:
    if not looking.cancelled() and (error := looking.exception()) is not None:
        log.error("a look at the service failed", exc_info=error)


def page() -> bytes:
    """The page with uPlot and its styles in it."""
    folder = files("serving").joinpath("dashboard")
    text = folder.joinpath("page.html").read_text(encoding="utf-8")
    for mark, name in (("/* uPlot.css */", "uPlot.min.css"), ("/* uPlot.js */", "uPlot.iife.min.js")):
        text = text.replace(mark, folder.joinpath("uplot", name).read_text(encoding="utf-8"), 1)
    return text.encode()


def _event(name: str, content: object) -> bytes:
    """Numbers are finite: msgspec writes null for those that aren't."""
    return b"event: " + name.encode() + b"\ndata: " + msgspec.json.encode(content) + b"\n\n"
