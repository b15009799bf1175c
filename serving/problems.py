"""RFC 9457 problem documents: the one shape of every error answer."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.responses import Response

from serving.errors import ServingError

MEDIA_TYPE = "application/problem+json"


class Problem(ServingError):
    """An answer other than success. `kind` is the last part of the problem's type URI, stable for clients to test."""

    def __init__(
        self,
        status: int,
        kind: str,
        detail: str,
        *,
        headers: Mapping[str, str] | None = None,
        **extensions: Any,
    ) -> None:
        super().__init__(detail)
        self.status, self.kind, self.detail = status, kind, detail
        self.headers, self.extensions = dict(headers or {}), extensions

    def response(self, request_id: str) -> Response:
        """The document as an HTTP response."""
        document = {
            "type": f"urn:towline:problem:{self.kind}",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": self.detail,
            "request_id": request_id,
            **self.extensions,
        }
        return Response(msgspec.json.encode(document), self.status, headers=self.headers, media_type=MEDIA_TYPE)


def invalid(field: str, detail: str) -> Problem:
    """422: the request is well-formed, but `field` (a JSON path, or a parameter's name) can't be used."""
    return Problem(422, "invalid", detail, field=field)


def not_found(detail: str, **extensions: Any) -> Problem:
    """404: nothing is stored under that id."""
    return Problem(404, "unknown-id", detail, **extensions)


def unavailable(kind: str, detail: str, *, retry_after_s: int = 1) -> Problem:
    """503 with Retry-After: the same request may succeed later."""
    return Problem(503, kind, detail, headers={"Retry-After": str(retry_after_s)})


def of_status(status: int, detail: str, headers: Mapping[str, str] | None = None) -> Problem:
    """A problem without a kind of its own, such as the router's 404 and 405."""
    kind = HTTPStatus(status).phrase.lower().replace(" ", "-")
    return Problem(status, kind, detail, headers=headers)
