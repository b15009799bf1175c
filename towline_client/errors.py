"""Every error of the client.

TowlineError
├── Unreachable      no answer: no connection, broken off, timed out
├── Unexpected       an answer that is none of Towline's, as from a proxy in between
└── ProblemError     an RFC 9457 problem document
    ├── BadRequest   400, 405, 406, 408, 415: not a request of this service
    ├── Unauthorized 401: no valid API key
    ├── NotFound     404: unknown id, a user without history where that is an error, events that are not taken
    ├── TooLarge     413: over a cap
    ├── Invalid      422: `field` says where
    ├── Unavailable  429, 503: not now; `retry_after_s`
    └── ServerError  500 and all others: an error of the service
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class TowlineError(Exception):
    """Root of the client's errors."""


class Unreachable(TowlineError):
    """There was no answer; the cause is httpx's own error."""


class Unexpected(TowlineError):
    """The answer is not what the service documents."""


class ProblemError(TowlineError):
    """The service said no, and why. The message is the document's detail, which names the remedy."""

    def __init__(self, document: Mapping[str, Any], retry_after_s: float | None) -> None:
        self.status = int(document["status"])
        self.kind = str(document["type"]).rpartition(":")[2]
        """Last part of the type, such as `unknown-id`: stable."""
        self.detail = str(document["detail"])
        self.request_id = str(document["request_id"])
        self.field: str | None = document.get("field")
        """Where in the request, of a 422."""
        self.document = dict(document)
        self.retry_after_s = retry_after_s
        super().__init__(f"{self.detail} ({self.status} {self.kind}, request {self.request_id})")


class BadRequest(ProblemError):
    """Not a request of this service."""


class Unauthorized(ProblemError):
    """The API key is missing or not one of the service's."""


class NotFound(ProblemError):
    """Nothing is there under that id."""


class TooLarge(ProblemError):
    """Over a cap of the service: split the request."""


class Invalid(ProblemError):
    """Well-formed, but `field` can't be used."""


class Unavailable(ProblemError):
    """Not now, and retries did not help."""


class ServerError(ProblemError):
    """An error of the service: report it with the request id."""


_KINDS: dict[int, type[ProblemError]] = {
    400: BadRequest,
    401: Unauthorized,
    404: NotFound,
    405: BadRequest,
    406: BadRequest,
    408: BadRequest,
    413: TooLarge,
    415: BadRequest,
    422: Invalid,
    429: Unavailable,
    503: Unavailable,
}


def problem_of(document: Mapping[str, Any], retry_after_s: float | None) -> ProblemError:
    """The error of a problem document. Raises KeyError, TypeError or ValueError if it is none."""
    return _KINDS.get(int(document["status"]), ServerError)(document, retry_after_s)
