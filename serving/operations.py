"""Pieces of the OpenAPI document: parameters, headers and failures that operations share, and how one is made."""

from __future__ import annotations

from typing import Any

REF = "#/components/schemas/{name}"
_PROBLEM = {"application/problem+json": {"schema": {"$ref": REF.format(name="ProblemDocument")}}}
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
EVERY = ("401", "500")
BODY = (*EVERY, "400", "408", "413", "415", "422", "503")
TOWER = {
    "name": "tower",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "enum": ["user", "item"]},
}
STALE = {
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
ONE_HEADERS = {
    **_ROW_HEADERS,
    "X-Embedding-Events": _header("integer", "raw: the row's own events"),
    "X-Embedding-Known": _header("integer", "raw: 0 for the initial vector of an unknown id"),
}
BATCH_HEADERS = {
    **_ROW_HEADERS,
    "X-Embedding-Dim": _header("integer", "raw: floats per row"),
    "X-Embedding-Count": _header("integer", "raw: rows"),
    "X-Embedding-Found": _header("string", "raw: base64 of a bitmap, lowest bit first; rows not found are zeros"),
}


def json_of(name: str) -> dict[str, Any]:
    """A JSON body of a schema."""
    return {"application/json": {"schema": {"$ref": REF.format(name=name)}}}


RAW = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}


def operation(
    name: str,
    summary: str,
    answer: dict[str, Any],
    failures: tuple[str, ...],
    *,
    description: str = "",
    headers: dict[str, Any] | None = None,
    body: str | None = None,
    parameters: tuple[dict[str, Any], ...] = (),
    open_to_all: bool = False,
    success: str = "200",
) -> dict[str, Any]:
    """An operation that answers `answer` with code `success`, or a problem document with one of `failures`."""
    request_id = {"X-Request-Id": _header("string", "the caller's, or one of our own")}
    responses: dict[str, Any] = {
        success: {"description": "OK", "headers": {**request_id, **(headers or {})}, "content": answer}
    }
    for code in sorted(failures):
        responses[code] = {"description": _FAILURES[code], "content": _PROBLEM}
    out: dict[str, Any] = {"operationId": name, "summary": summary, "responses": responses}
    if description:
        out["description"] = description
    if parameters:
        out["parameters"] = list(parameters)
    if body is not None:
        out["requestBody"] = {"required": True, "content": json_of(body)}
    if open_to_all:
        out["security"] = []
    return out
