"""What surrounds every request: its id, the key, the cap on requests in flight, metrics, the last resort for errors.

One pure ASGI layer: each would cost a call per message, and BaseHTTPMiddleware mishandles clients that go away.
"""

from __future__ import annotations

import logging
import os
import re
import time
import traceback
from collections.abc import Mapping
from itertools import count

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from embedding_store.errors import StoreError
from serving.auth import EXEMPT, ApiKeys
from serving.problems import Problem, of_status, unavailable
from serving.service import Service

log = logging.getLogger(__name__)

_SANE_ID = re.compile(rb"[A-Za-z0-9._~:/+=@-]{1,128}")
UNMATCHED = "unmatched"
"""The route of a path that there is none for."""


def request_id(scope: Scope) -> str | None:
    """The caller's X-Request-Id where it is sane to echo."""
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _SANE_ID.fullmatch(value):
            return bytes(value).decode("ascii")
    return None


class RequestLayer:
    """The layer around the router. `labels` names each endpoint's route for metrics.

    Handlers raise Problem or StoreError; both become documents here. An exception of any other
    kind is a bug: it is logged with its place, and answered as a 500 problem document.
    """

    def __init__(self, app: ASGIApp, service: Service, labels: Mapping[object, str]) -> None:
        self._app, self._service, self._labels = app, service, labels
        settings = service.settings
        self._prefix, self._numbers = os.urandom(6).hex(), count(1)  # not the module's: workers are forked
        self._keys = ApiKeys(settings.api_keys, docs_without_key=settings.docs_without_key)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        metrics = self._service.metrics
        name = request_id(scope) or f"{self._prefix}-{next(self._numbers)}"
        id_header = (b"x-request-id", name.encode())
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], id_header]
            await send(message)

        started = time.perf_counter()
        metrics.in_flight += 1
        try:
            self._admit(scope)
            await self._app(scope, receive, send_with_id)
        except Exception as error:
            problem = as_problem(error, name, scope)
            if status:
                raise  # the head is out: the connection must break, or the client would take a torso for the whole
            await problem.response(name)(scope, receive, send_with_id)
        finally:
            metrics.in_flight -= 1
            metrics.request(self._labels.get(scope.get("endpoint"), UNMATCHED), status, time.perf_counter() - started)

    def _admit(self, scope: Scope) -> None:
        path = scope["path"]
        self._keys.check(path, scope["headers"])
        if self._service.metrics.in_flight > self._service.settings.max_in_flight and path not in EXEMPT:
            raise unavailable("busy", "too many requests at once: retry later")


def as_problem(error: Exception, name: str, scope: Scope) -> Problem:
    """The answer to an exception of a handler; logs what isn't the client's doing."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, HTTPException):
        return _of_router(error, scope)
    if isinstance(error, StoreError):
        log.warning("request %s: the store is away: %s", name, ascii(str(error)))
        return unavailable("store-down", "the store can't be reached: retry later")
    # The message may hold the client's bytes: through ascii() it can forge no line. Frames hold only our code.
    place = "".join(traceback.format_tb(error.__traceback__))
    log.error(
        "request %s: %s %s failed: %s\n%s", name, scope["method"], ascii(scope["path"]), ascii(repr(error)), place
    )
    return Problem(500, "internal", "an error of the service: report it with the request id")


def _of_router(error: HTTPException, scope: Scope) -> Problem:
    """The router's own 404 and 405."""
    if error.status_code == 404:
        return of_status(404, "no such path: /docs lists what there is")
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        return of_status(405, f"{scope['method'][:20]} is not allowed here: use {allowed}", error.headers)
    return of_status(error.status_code, str(error.detail), error.headers)
