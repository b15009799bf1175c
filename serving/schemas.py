"""Requests and answers. They decode and encode, and the OpenAPI document is made of them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

Id = Annotated[
    str | int,
    Meta(
        description='1 to 512 bytes of UTF-8; 42 and "42" are the same id',
        examples=["u1", 42],
        extra_json_schema={"minLength": 1, "maxLength": 512},  # of characters; bytes are the handlers' to count
    ),
]
K = Annotated[
    int,
    Meta(
        ge=1,
        description="items wanted; the service's own cap may be lower: serving.max_k",
        extra_json_schema={"maximum": 100_000},
    ),
]
Vector = Annotated[
    Raw,
    Meta(extra_json_schema={"type": "array", "items": {"type": "number", "format": "float"}}),
]
Vectors = Annotated[
    Raw,
    Meta(
        description="per id: an array of floats, or base64 of little-endian float32, or null where missing",
        extra_json_schema={
            "type": "array",
            "items": {
                "oneOf": [
                    {"type": "array", "items": {"type": "number", "format": "float"}},
                    {"type": "string", "contentEncoding": "base64"},
                    {"type": "null"},
                ]
            },
        },
    ),
]
Score = Annotated[Raw, Meta(extra_json_schema={"type": "number", "format": "float"})]
Step = Annotated[int, Meta(description="event clock: usable events applied when the row was last updated")]
Age = Annotated[float, Meta(description="seconds since the row was last updated")]
AsOf = Annotated[
    str, Meta(description="event time up to which the stream is reflected", extra_json_schema={"format": "date-time"})
]
Tower = Literal["user", "item"]


FeatureValue = str | int | float | list[str | int] | None
Features = Annotated[
    dict[str, FeatureValue] | None,
    Meta(
        description="the request's features that the model declares, by name: a category, a list of categories, or a "
        "number; null and unknown values add nothing",
        examples=[{"device": "phone", "hour": 21}],
    ),
]


Filter = Annotated[
    dict[str, str | int | list[str | int] | dict[str, float | None]] | None,
    Meta(
        description="answer only items whose declared features are so, all of them: by name a category, a list of "
        "which an item must have one, or a range of a number, min ≤ x < max, that begins and ends at boundaries. "
        "Exact: the best k of the items that pass",
        examples=[{"genre": ["drama", "comedy"], "year": {"min": 1990, "max": 2000}}],
    ),
]


class BatchRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Embeddings of many ids of one tower."""

    ids: list[Id]
    format: Literal["json", "base64", "raw"] = "json"
    on_missing: Annotated[
        Literal["null", "initial", "error"],
        Meta(description="of an unknown id: null, the vector it would start with, or 404 for the whole batch"),
    ] = "null"


class Choice(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """How recommendations are chosen, whoever they are for."""

    k: K = 20
    exclude: Annotated[list[Id], Meta(description="items never to answer")] = []
    exclude_seen: Annotated[bool, Meta(description="leave out the user's own positives")] = True
    candidates: Annotated[list[Id] | None, Meta(description="choose among these items only")] = None
    fallback: Annotated[
        Literal["popular", "mean", "error"],
        Meta(description="for a user without history: popular items, items near the mean of those, or 404"),
    ] = "popular"
    features: Features = None
    filter: Filter = None


class RecommendRequest(Choice, kw_only=True):
    """What to recommend to whom."""

    user_id: Id


class Embedding(msgspec.Struct):
    """One vector, with what tells how fresh it is."""

    id: str
    tower: Tower
    dim: int
    vector: Vector
    step: Step | None
    updated_at: Annotated[str | None, Meta(extra_json_schema={"format": "date-time"})]
    age_s: Age | None
    events: Annotated[int, Meta(description="events whose own user or item it is: exact")]
    known: Annotated[bool, Meta(description="false: nothing is stored, the vector is the initial one")]
    source: Literal["mirror", "store", "initial"]
    as_of: AsOf | None


class Embeddings(msgspec.Struct):
    """Vectors of a batch, in the order of its ids; null where an id is missing."""

    dim: int
    dtype: Literal["float32-le"]
    found: list[bool]
    step: list[Step | None]
    age_s: list[Age | None]
    events: list[int]
    vectors: Vectors
    as_of: AsOf | None


class RecommendedItem(msgspec.Struct):
    """An item and its score; scores of different strategies don't compare."""

    item_id: str
    score: Score
    step: Step
    age_s: Age | None


class UserState(msgspec.Struct):
    """The user's row as it was used."""

    step: Step
    age_s: Age | None
    events: int


class Index(msgspec.Struct):
    """What was searched, and how fresh it is."""

    kind: Literal["exact"]
    size: int
    as_of: AsOf | None
    lag_ms: Annotated[float, Meta(description="time since the mirror was known to hold everything in the feed")]


class Recommendation(msgspec.Struct):
    """Items, best first, and how they were found."""

    items: list[RecommendedItem]
    strategy: Literal["personal", "popular", "mean"]
    cold_start: Annotated[bool, Meta(description="nothing is known of the user: no history, no learned feature")]
    user: UserState | None
    index: Index
    model_version: str


class TableState(msgspec.Struct):
    """A table over all its shards."""

    rows: int
    shards: int
    step: Annotated[int, Meta(description="lowest event clock of its shards")]
    as_of: AsOf | None


class FreshnessState(msgspec.Struct):
    """Record produced → visible in answers, over the last refreshes; null before the first."""

    samples: int
    p50_ms: float | None
    p99_ms: float | None


class Model(msgspec.Struct):
    """What is being served."""

    version: str
    spec: Annotated[dict[str, Any], Meta(description="the published [model] settings")]
    dim: Annotated[int, Meta(description="of embeddings answered")]
    step: Annotated[int, Meta(description="event clock of the mirror")]
    tables: Annotated[dict[str, TableState] | None, Meta(description="null while the store is down")]
    freshness: FreshnessState
    index: Index


class Readiness(msgspec.Struct):
    """Ready to take traffic; `degraded` names what is wrong but not yet past its limit."""

    status: Literal["ready"]
    degraded: list[str]


class ProblemDocument(msgspec.Struct):
    """RFC 9457. Every error has this shape; some add members, such as `field`, `reasons` or `missing`."""

    type: Annotated[str, Meta(examples=["urn:towline:problem:unknown-id"])]
    title: str
    status: int
    detail: Annotated[str, Meta(description="what is wrong with this request, and the remedy")]
    request_id: str
    field: Annotated[str | UnsetType, Meta(description="422: where in the request")] = UNSET


REQUESTS: tuple[type[msgspec.Struct], ...] = (BatchRequest, RecommendRequest)
ANSWERS: tuple[type[msgspec.Struct], ...] = (Embedding, Embeddings, Recommendation, Model, Readiness, ProblemDocument)
