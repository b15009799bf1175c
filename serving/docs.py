"""The OpenAPI document, and a page that shows it without the internet."""

from __future__ import annotations

from importlib.resources import files

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from native.features import NO_FEATURES
from serving.negotiate import JSON
from serving.openapi import document
from serving.service import Service

_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)


class DocsRoutes:
    """`/docs` is one self-contained page of 6 KB: Swagger UI would be 1.5 MB of scripts, usually from a CDN."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._version, self._document = "", msgspec.json.encode(document())
        self._page = files("serving").joinpath("docs.html").read_bytes()

    async def openapi(self, request: Request) -> Response:  # noqa: ARG002 - the router passes it
        """GET /openapi.json"""
        live = self._service.live
        if live is not None and live.version != self._version:
            features = live.model.feature_schema or NO_FEATURES
            self._version, self._document = live.version, msgspec.json.encode(document(features))
        return Response(self._document, media_type=JSON)

    async def page(self, request: Request) -> Response:  # noqa: ARG002
        """GET /docs"""
        return Response(self._page, media_type="text/html", headers={"Content-Security-Policy": _POLICY})
