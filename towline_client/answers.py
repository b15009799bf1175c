"""Answers as frozen objects. Members that a newer service adds are ignored; one that is missing is an error."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from towline_client.errors import Unexpected

if TYPE_CHECKING:
    from towline_client.vectors import Vector
else:
    Vector = object  # converted before; needs no look

Kind = TypeVar("Kind")
Strategy = Literal["personal", "popular", "mean"]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What every answer says of itself."""

    stale: bool
    """It may miss more of the stream than the service is configured to accept, as while its store is away."""
    request_id: str


@dataclass(frozen=True)
class Index:
    """What was searched: `as_of` is the event time up to which the stream is reflected."""

    kind: str
    size: int
    as_of: str | None
    lag_ms: float


@dataclass(frozen=True)
class UserState:
    """The user's row as it was used."""

    step: int
    age_s: float | None
    events: int


@dataclass(frozen=True)
class ItemState(UserState):
    """The item's row as it was used."""


@dataclass(frozen=True)
class Embedding(Answer):
    """One vector (dim,), and how fresh it is."""

    id: str
    tower: str
    dim: int
    vector: Vector
    step: int | None
    updated_at: str | None
    age_s: float | None
    events: int
    known: bool
    source: str
    as_of: str | None


@dataclass(frozen=True)
class Embeddings(Answer):
    """Vectors (dim,) in the order of the ids; None where an id is missing."""

    dim: int
    found: list[bool]
    step: list[int | None]
    age_s: list[float | None]
    events: list[int]
    vectors: list[Vector | None]
    as_of: str | None


@dataclass(frozen=True)
class RecommendedItem:
    """An item and its score; scores of different strategies don't compare."""

    item_id: str
    score: float
    step: int
    age_s: float | None


@dataclass(frozen=True)
class Recommendation(Answer):
    """Items, best first, and how they were found."""

    items: list[RecommendedItem]
    strategy: Strategy
    cold_start: bool
    user: UserState | None
    index: Index
    model_version: str


@dataclass(frozen=True)
class UserRecommendation:
    """Of one user of a batch."""

    user_id: str
    items: list[RecommendedItem]
    strategy: Strategy
    cold_start: bool
    user: UserState | None


@dataclass(frozen=True)
class Recommendations(Answer):
    """One result for each user, in the order of the request."""

    results: list[UserRecommendation]
    index: Index
    model_version: str


@dataclass(frozen=True)
class Similar(Answer):
    """Items, nearest first; `score` is a cosine. `missing`: given items that are unknown."""

    items: list[RecommendedItem]
    missing: list[str]
    index: Index
    model_version: str


@dataclass(frozen=True)
class Scores(Answer):
    """In the order of the items; None for what would never be recommended."""

    scores: list[float | None]
    found: list[bool]
    age_s: list[float | None]
    strategy: Strategy
    cold_start: bool
    user: UserState | None
    index: Index
    model_version: str


@dataclass(frozen=True)
class ClockPart:
    """What one clock of the model adds to a score."""

    recency: float
    score: float


@dataclass(frozen=True)
class FeaturePart:
    """What a declared feature adds to a score."""

    name: str
    of: str
    score: float


@dataclass(frozen=True)
class ItemParts:
    """The dot product as a sum over the item's row and features."""

    row: float | None
    features: list[FeaturePart]
    dense_bias: float | None


@dataclass(frozen=True)
class ScoreParts:
    """What a score is the sum of; `item` is the same dot product, without popularity, from the item's side."""

    clocks: list[ClockPart]
    user_id_vector: float | None
    dense_bias: float | None
    popularity: float | None
    features: list[FeaturePart]
    item: ItemParts | None
    transition: float | None = None


@dataclass(frozen=True)
class Contribution:
    """What an item of the user's history adds to the dot product."""

    item_id: str
    times: int
    score: float


@dataclass(frozen=True)
class Explanation(Answer):
    """Why an item stands where it stands for a user."""

    user_id: str
    item_id: str
    score: float | None
    rank: float | None
    seen: bool
    strategy: Strategy
    cold_start: bool
    parts: ScoreParts
    history: list[Contribution]
    user: UserState | None
    item: ItemState
    index: Index
    model_version: str


@dataclass(frozen=True)
class Model(Answer):
    """What is being served."""

    version: str
    spec: dict[str, Any]
    dim: int
    step: int
    tables: dict[str, Any] | None
    freshness: dict[str, Any]
    index: Index


def build(kind: type[Kind], document: Any) -> Kind:
    """An object of a dataclass of this module from decoded JSON. Raises Unexpected."""
    return cast("Kind", _built(kind, document, kind.__name__))


def _built(kind: Any, value: Any, where: str) -> Any:
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        if not isinstance(value, Mapping):
            raise Unexpected(f"{where} should be an object, is {type(value).__name__}")
        hints = _hints(kind)
        missing = [name for name in hints if name not in value]
        if missing:
            raise Unexpected(f"{where} lacks {', '.join(missing)}: client and service are of different releases")
        return cast("Any", kind)(**{name: _built(hint, value[name], f"{where}.{name}") for name, hint in hints.items()})
    origin = get_origin(kind)
    if origin in (types.UnionType, Union):
        return None if value is None else _built(get_args(kind)[0], value, where)
    if origin is list:
        if not isinstance(value, list):
            raise Unexpected(f"{where} should be a list, is {type(value).__name__}")
        return [_built(get_args(kind)[0], item, where) for item in value]
    return value


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)
