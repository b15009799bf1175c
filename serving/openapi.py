"""The OpenAPI 3.1 document, made of the structs that requests are decoded into and answers encoded from."""

from __future__ import annotations

from functools import cache
from importlib.metadata import version
from typing import Any

import msgspec

from serving.schemas import ANSWERS, REQUESTS

_REF = "#/components/schemas/{name}"
_PROBLEM = {"application/problem+json": {"schema": {"$ref": _REF.format(name="ProblemDocument")}}}
_FAILURES = {
    "400": "malformed JSON",
    "401": "no valid X-API-Key",
    "404": "unknown id or path",
    "406": "no acceptable representation",
    "408": "the body took too long to arrive",
    "413": "over a cap",
    "415": "the body is not JSON",
    "422": "well-formed but invalid; `field` says where",
    "500": "an error of the service",
    "503": "not now: loading, store down or busy; see Retry-After",
}
_EVERY = ("401", "500")
_BODY = (*_EVERY, "400", "408", "413", "415", "422", "503")
_TOWER = {
    "name": "tower",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "enum": ["user", "item"]},
}
_STALE = {
    "X-Stale": {
        "description": "1 where the answer may miss more of the stream than the configured lag",
        "schema": {"type": "string", "enum": ["1"]},
    },
    "X-As-Of": {
        "description": "with X-Stale: event time up to which the stream is reflected",
        "schema": {"type": "string", "format": "date-time"},
    },
}


def _header(kind: str, description: str) -> dict[str, Any]:
    return {"description": description, "schema": {"type": kind}}


_ROW_HEADERS = {
    "X-Embedding-Step": _header("integer", "raw: event clock of the row; of a batch, the lowest"),
    "X-Embedding-Age-Ms": _header("integer", "raw: ms since the row's last update; of a batch, the longest"),
}
_ONE_HEADERS = {
    **_ROW_HEADERS,
    "X-Embedding-Events": _header("integer", "raw: the row's own events"),
    "X-Embedding-Known": _header("integer", "raw: 0 for the initial vector of an unknown id"),
}
_BATCH_HEADERS = {
    **_ROW_HEADERS,
    "X-Embedding-Dim": _header("integer", "raw: floats per row"),
    "X-Embedding-Count": _header("integer", "raw: rows"),
    "X-Embedding-Found": _header("string", "raw: base64 of a bitmap, lowest bit first; rows not found are zeros"),
}


def _json(name: str) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": _REF.format(name=name)}}}


_RAW = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}


def _operation(
    operation: str,
    summary: str,
    answer: dict[str, Any],
    failures: tuple[str, ...],
    *,
    description: str = "",
    headers: dict[str, Any] | None = None,
    body: str | None = None,
    parameters: tuple[dict[str, Any], ...] = (),
    open_to_all: bool = False,
) -> dict[str, Any]:
    request_id = {"X-Request-Id": _header("string", "the caller's, or one of our own")}
    responses: dict[str, Any] = {
        "200": {"description": "OK", "headers": {**request_id, **(headers or {})}, "content": answer}
    }
    for code in sorted(failures):
        responses[code] = {"description": _FAILURES[code], "content": _PROBLEM}
    out: dict[str, Any] = {"operationId": operation, "summary": summary, "responses": responses}
    if description:
        out["description"] = description
    if parameters:
        out["parameters"] = list(parameters)
    if body is not None:
        out["requestBody"] = {"required": True, "content": _json(body)}
    if open_to_all:
        out["security"] = []
    return out


def _paths() -> dict[str, Any]:
    identity = {
        "name": "id",
        "in": "path",
        "required": True,
        "description": "1 to 512 bytes of UTF-8, percent-encoded; slashes may stay as they are",
        "schema": {"type": "string"},
    }
    on_missing = {
        "name": "on_missing",
        "in": "query",
        "description": "of an unknown id: 404, or the vector it would start with",
        "schema": {"type": "string", "enum": ["error", "initial"], "default": "error"},
    }
    text = {"text/plain": {"schema": {"type": "string"}}}
    alive = {"application/json": {"schema": {"type": "object", "properties": {"status": {"const": "alive"}}}}}
    return {
        "/v1/embeddings/{tower}/{id}": {
            "get": _operation(
                "lookup",
                "One embedding",
                _json("Embedding") | _RAW,
                (*_EVERY, "404", "406", "422", "503"),
                description="`application/octet-stream` answers little-endian float32; the rest is in headers.",
                headers=_ONE_HEADERS | _STALE,
                parameters=(_TOWER, identity, on_missing),
            )
        },
        "/v1/embeddings/{tower}:batch": {
            "post": _operation(
                "lookup_batch",
                "Embeddings of many ids",
                _json("Embeddings") | _RAW,
                (*_BODY, "404"),
                headers=_BATCH_HEADERS | _STALE,
                body="BatchRequest",
                parameters=(_TOWER,),
            )
        },
        "/v1/recommend": {
            "post": _operation(
                "recommend",
                "The best items for a user",
                _json("Recommendation"),
                (*_BODY, "404"),
                description="An unknown user is answered with popular items and `cold_start`. While the store is down "
                "so is everyone, marked X-Stale, without knowledge of what they have seen.",
                headers=_STALE,
                body="RecommendRequest",
            )
        },
        "/v1/model": {"get": _operation("model", "What is served", _json("Model"), (*_EVERY, "503"), headers=_STALE)},
        "/livez": {"get": _operation("livez", "Is the process alive", alive, ("503",), open_to_all=True)},
        "/readyz": {
            "get": _operation(
                "readyz",
                "Should traffic come here",
                _json("Readiness"),
                ("503",),
                description="503 has `reasons`: loading, store_down, lag, draining.",
                open_to_all=True,
            )
        },
        "/metrics": {"get": _operation("metrics", "For Prometheus", text, _EVERY)},
        "/openapi.json": {
            "get": _operation("openapi", "This document", {"application/json": {"schema": {"type": "object"}}}, _EVERY)
        },
        "/docs": {
            "get": _operation(
                "docs", "This document, for people", {"text/html": {"schema": {"type": "string"}}}, _EVERY
            )
        },
    }


@cache
def document() -> dict[str, Any]:
    """The document. Made once."""
    _, components = msgspec.json.schema_components([*REQUESTS, *ANSWERS], ref_template=_REF)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Towline",
            "version": version("towline"),
            "summary": "Fresh embeddings and recommendations from an event stream.",
            "description": "Every error is an RFC 9457 problem document. `step` is the event clock of a row, `age_s` "
            "the time since its last update; `as_of` is the event time up to which the stream is reflected: only that "
            "is staleness.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": _paths(),
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "apiKey", "in": "header", "name": "X-API-Key"}},
        },
        "security": [{"key": []}, {}],
    }
