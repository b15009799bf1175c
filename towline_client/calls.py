"""Requests as data, and what their answers become: all that the sync and the async client share. No I/O."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import quote

import httpx

from towline_client import answers, vectors
from towline_client.errors import ProblemError, Unexpected, problem_of

Id = str | int
Tower = Literal["user", "item"]
Fallback = Literal["popular", "mean", "error"]
Features = Mapping[str, str | int | float | list[str | int] | None]
"""Values of declared features by name."""
Filter = Mapping[str, str | int | list[str | int] | Mapping[str, float | None]]
"""By name of a declared feature of items: a category, several of which one is enough, or `{"min": x, "max": y}`."""


@dataclass(frozen=True)
class Event:
    """An interaction. label above 0: a positive, 0: an explicit negative; timestamp: ms or ISO 8601, None: now."""

    user_id: Id
    item_id: Id
    label: float = 1.0
    weight: float = 1.0
    timestamp: int | str | None = None
    features: Features | None = None
    """Of the item, the user and the request, as the model declares them."""


@dataclass(frozen=True)
class Call:
    """A request, and how its JSON becomes an answer."""

    method: str
    path: str
    parse: Callable[[Any], Any]
    json: Any = None
    params: Mapping[str, str] = field(default_factory=dict)
    repeatable: bool = True  # sending it twice is as good as once


def outcome(call: Call, response: httpx.Response) -> Any:
    """The answer. Raises ProblemError, Unexpected."""
    if not response.is_success:
        raise _problem(response)
    try:
        document = response.json()
    except ValueError as error:
        raise Unexpected(f"{call.path} was answered with {response.status_code} and no JSON") from error
    if not isinstance(document, dict):
        raise Unexpected(f"{call.path} was answered with {type(document).__name__}")
    document["stale"] = response.headers.get("x-stale") == "1"
    document["request_id"] = response.headers.get("x-request-id", "")
    try:
        return call.parse(document)
    except (KeyError, TypeError, ValueError) as error:
        raise Unexpected(f"{call.path} was answered with what can't be read: {error!r}") from error


def _problem(response: httpx.Response) -> ProblemError:
    try:
        return problem_of(response.json(), _seconds(response.headers.get("retry-after")))
    except (KeyError, TypeError, ValueError) as error:
        raise Unexpected(
            f"{response.request.url} was answered with {response.status_code} and no problem document: is it Towline?"
        ) from error


def _seconds(retry_after: str | None) -> float | None:
    """Retry-After in seconds; the service sends no dates."""
    return float(retry_after) if retry_after is not None and retry_after.isdecimal() else None


def embedding(tower: Tower, identity: Id, on_missing: Literal["error", "initial"]) -> Call:
    # all of it escaped, dots too: a path may be normalized on its way
    path = f"/v1/embeddings/{tower}/{quote(str(identity), safe='').replace('.', '%2E')}"
    return Call("GET", path, _embedding, params={"on_missing": on_missing})


def _embedding(document: dict[str, Any]) -> answers.Embedding:
    document["vector"] = vectors.from_numbers(document["vector"])
    return answers.build(answers.Embedding, document)


def embeddings(tower: Tower, ids: Iterable[Id], on_missing: Literal["null", "initial", "error"]) -> Call:
    body = {"ids": list(ids), "format": "base64", "on_missing": on_missing}
    return Call("POST", f"/v1/embeddings/{tower}:batch", _embeddings, body)


def _embeddings(document: dict[str, Any]) -> answers.Embeddings:
    document["vectors"] = [None if row is None else vectors.from_base64(row) for row in document["vectors"]]
    return answers.build(answers.Embeddings, document)


def recommend(user_id: Id, choice: Mapping[str, Any]) -> Call:
    return Call("POST", "/v1/recommend", _to(answers.Recommendation), {"user_id": user_id, **choice})


def recommend_batch(user_ids: Iterable[Id], choice: Mapping[str, Any]) -> Call:
    return Call("POST", "/v1/recommend:batch", _to(answers.Recommendations), {"user_ids": list(user_ids), **choice})


def choice(
    k: int,
    exclude: Iterable[Id],
    candidates: Iterable[Id] | None,
    *,
    exclude_seen: bool,
    fallback: Fallback,
    features: Features | None,
    wanted: Filter | None,
) -> dict[str, Any]:
    """Members that both of them take."""
    return {
        **_told(features),
        **_filtered(wanted),
        "k": k,
        "exclude": list(exclude),
        "exclude_seen": exclude_seen,
        "candidates": None if candidates is None else list(candidates),
        "fallback": fallback,
    }


def similar(
    item_ids: Iterable[Id], k: int, exclude: Iterable[Id], candidates: Iterable[Id] | None, wanted: Filter | None
) -> Call:
    body = {
        **_filtered(wanted),
        "item_ids": list(item_ids),
        "k": k,
        "exclude": list(exclude),
        "candidates": None if candidates is None else list(candidates),
    }
    return Call("POST", "/v1/similar", _to(answers.Similar), body)


def score(user_id: Id, item_ids: Iterable[Id], fallback: Fallback, features: Features | None) -> Call:
    body = {"user_id": user_id, "item_ids": list(item_ids), "fallback": fallback, **_told(features)}
    return Call("POST", "/v1/score", _to(answers.Scores), body)


def _told(features: Features | None) -> dict[str, Any]:
    """Left out where there are none: a service of an older release takes none."""
    return {} if features is None else {"features": dict(features)}


def _filtered(wanted: Filter | None) -> dict[str, Any]:
    """Likewise."""
    return {} if wanted is None else {"filter": dict(wanted)}


def explain(user_id: Id, item_id: Id, features: Features | None) -> Call:
    params = {"user_id": str(user_id), "item_id": str(item_id)}
    if features is not None:
        params["features"] = json.dumps(dict(features))
    return Call("GET", "/v1/explain", _to(answers.Explanation), params=params)


def send_events(events: Iterable[Event]) -> Call:
    body = {"events": [_event(event) for event in events]}
    return Call("POST", "/v1/events", lambda document: int(document["accepted"]), body, repeatable=False)


def _event(event: Event) -> dict[str, Any]:
    return {name: value for name, value in vars(event).items() if name != "features"} | _told(event.features)


def model() -> Call:
    return Call("GET", "/v1/model", _to(answers.Model))


def _to(kind: type[Any]) -> Callable[[Any], Any]:
    return lambda document: answers.build(kind, document)
