"""The OpenAPI 3.1 document, made of the structs that requests are decoded into and answers encoded from."""

from __future__ import annotations

from functools import lru_cache
from importlib.metadata import version
from typing import Any

import msgspec

from embedding_store.item_filter import MAX_KEYS
from native.features import CATEGORIES, ITEM, MAX_CATEGORIES, NO_FEATURES, NUMBER, REQUEST, Declared, FeatureSchema
from serving import ranking_schemas, schemas
from serving.operations import BATCH_HEADERS, BODY, EVERY, ONE_HEADERS, RAW, REF, STALE, TOWER, json_of, operation

_TYPES = (*schemas.REQUESTS, *schemas.ANSWERS, *ranking_schemas.REQUESTS, *ranking_schemas.ANSWERS)


_FILTERING = ("RecommendRequest", "RecommendBatchRequest", "SimilarRequest")
"""Requests that filter items."""
_ASKING = ("RecommendRequest", "RecommendBatchRequest", "ScoreRequest")
"""Requests that bring features."""


def _paths(features: dict[str, Any]) -> dict[str, Any]:
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
    given = {
        "name": "features",
        "in": "query",
        "description": "a JSON object of the request's features, as in `/v1/recommend`",
        "content": {"application/json": {"schema": features}},
    }
    text = {"text/plain": {"schema": {"type": "string"}}}
    alive = {"application/json": {"schema": {"type": "object", "properties": {"status": {"const": "alive"}}}}}
    return {
        "/v1/embeddings/{tower}/{id}": {
            "get": operation(
                "lookup",
                "One embedding",
                json_of("Embedding") | RAW,
                (*EVERY, "404", "406", "422", "503"),
                description="`application/octet-stream` answers little-endian float32; the rest is in headers.",
                headers=ONE_HEADERS | STALE,
                parameters=(TOWER, identity, on_missing),
            )
        },
        "/v1/embeddings/{tower}:batch": {
            "post": operation(
                "lookup_batch",
                "Embeddings of many ids",
                json_of("Embeddings") | RAW,
                (*BODY, "404"),
                headers=BATCH_HEADERS | STALE,
                body="BatchRequest",
                parameters=(TOWER,),
            )
        },
        "/v1/recommend": {
            "post": operation(
                "recommend",
                "The best items for a user",
                json_of("Recommendation"),
                (*BODY, "404"),
                description="An unknown user is answered with popular items and `cold_start`. While the store is down "
                "so is everyone, marked X-Stale, without knowledge of what they have seen.",
                headers=STALE,
                body="RecommendRequest",
            )
        },
        "/v1/recommend:batch": {
            "post": operation(
                "recommend_batch",
                "The best items for each of several users",
                json_of("Recommendations"),
                (*BODY, "404"),
                description="Of `serving.max_users` users at most. With `fallback` error one user without history is "
                "404 for all of them, and `missing` names such users.",
                headers=STALE,
                body="RecommendBatchRequest",
            )
        },
        "/v1/similar": {
            "post": operation(
                "similar",
                "Items near items",
                json_of("Similar"),
                (*BODY, "404"),
                description="By cosine of item embeddings, exact. 404 if none of the given items is known.",
                headers=STALE,
                body="SimilarRequest",
            )
        },
        "/v1/score": {
            "post": operation(
                "score",
                "Scores of given items for a user",
                json_of("Scores"),
                (*BODY, "404"),
                headers=STALE,
                body="ScoreRequest",
            )
        },
        "/v1/explain": {
            "get": operation(
                "explain",
                "Why an item stands where it stands for a user",
                json_of("Explanation"),
                (*EVERY, "404", "422", "503"),
                description="The score is the sum of its parts, and the dot product by clock that of the additions of "
                "the history's items. `parts.item` is the same dot product as a sum over the item's row and features. "
                "Where the model has dense layers, additions are those of the affine function "
                "that its ReLU network is around this user, and `dense_bias` is that function's constant.",
                headers=STALE,
                parameters=(_query_id("user_id"), _query_id("item_id"), given),
            )
        },
        "/v1/events": {
            "post": operation(
                "send_events",
                "Events, for whoever has no Kafka client",
                json_of("Accepted"),
                (*BODY, "404"),
                description="Off unless `serving.events` is set: 404. All events are checked as a trainer checks them, "
                "and refused together (422); then produced and acknowledged. After a 503 of type `stream-away` some "
                "may have been taken: an event that is sent again may count twice.",
                body="EventsRequest",
                success="202",
            )
        },
        "/v1/model": {"get": operation("model", "What is served", json_of("Model"), (*EVERY, "503"), headers=STALE)},
        "/livez": {"get": operation("livez", "Is the process alive", alive, ("503",), open_to_all=True)},
        "/readyz": {
            "get": operation(
                "readyz",
                "Should traffic come here",
                json_of("Readiness"),
                ("503",),
                description="503 has `reasons`: loading, store_down, lag, draining. `degraded` has store_down while "
                "the mirror is young enough, and model_refused while a newer model is published than this service can "
                "read or serve: the log says why.",
                open_to_all=True,
            )
        },
        "/metrics": {"get": operation("metrics", "For Prometheus", text, EVERY)},
        "/openapi.json": {
            "get": operation("openapi", "This document", {"application/json": {"schema": {"type": "object"}}}, EVERY)
        },
        "/dashboard": {
            "get": operation(
                "dashboard",
                "How it all is, for people",
                {"text/html": {"schema": {"type": "string"}}},
                ("503",),
                open_to_all=True,
            )
        },
        "/dashboard/events": {
            "get": operation(
                "dashboard_events",
                "What the dashboard shows, once a second",
                {"text/event-stream": {"schema": {"type": "string"}}},
                (*EVERY, "503"),
                description="Server-sent events: `begin`, then `look` a second, with `items` where the map has others.",
            )
        },
        "/docs": {
            "get": operation("docs", "This document, for people", {"text/html": {"schema": {"type": "string"}}}, EVERY)
        },
    }


def _query_id(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "in": "query",
        "required": True,
        "description": "1 to 512 bytes of UTF-8, percent-encoded",
        "schema": {"type": "string", "minLength": 1},
    }


def _features_of(schema: FeatureSchema) -> dict[str, Any]:
    """What a request may bring where these are declared."""
    own = {one.name: _value_of(one) for one in schema.declared if one.side == REQUEST}
    return {"type": ["object", "null"], "properties": own, "additionalProperties": False}


def _filter_of(schema: FeatureSchema) -> dict[str, Any]:
    """What items may be filtered by where these are declared."""
    own = {one.name: _condition_of(one) for one in schema.declared if one.side == ITEM and not one.hash_buckets}
    return {"type": ["object", "null"], "properties": own, "additionalProperties": False}


def _condition_of(feature: Declared) -> dict[str, Any]:
    if feature.kind == NUMBER:
        end = {"enum": [None, *feature.boundaries], "description": "a boundary of the feature's buckets"}
        ends = {"min": end, "max": end}
        return {"type": "object", "minProperties": 1, "additionalProperties": False, "properties": ends}
    category = {"type": ["string", "integer"], "minLength": 1}
    return {"anyOf": [category, {"type": "array", "items": category, "minItems": 1, "maxItems": MAX_KEYS}]}


def _value_of(feature: Declared) -> dict[str, Any]:
    if feature.kind == NUMBER:
        return {"type": ["number", "null"]}
    category = {"type": ["string", "integer"], "minLength": 1}
    if feature.kind != CATEGORIES:
        return category | {"type": ["string", "integer", "null"]}
    many = {"type": "array", "items": category, "maxItems": MAX_CATEGORIES}
    return {"anyOf": [many, category, {"type": "null"}]}


@lru_cache(maxsize=4)
def document(schema: FeatureSchema = NO_FEATURES) -> dict[str, Any]:
    """The document of a service whose model declares these features. Made once for each."""
    _, components = msgspec.json.schema_components(_TYPES, ref_template=REF)
    features = _features_of(schema)
    for name in _ASKING:
        given = components[name]["properties"]["features"]
        components[name]["properties"]["features"] = {"description": given["description"], "default": None, **features}
    for name in _FILTERING:
        said = components[name]["properties"]["filter"]["description"]
        components[name]["properties"]["filter"] = {"description": said, "default": None, **_filter_of(schema)}
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
        "paths": _paths(features),
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "apiKey", "in": "header", "name": "X-API-Key"}},
        },
        "security": [{"key": []}, {}],
    }
