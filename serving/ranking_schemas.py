"""Requests and answers of the routes beside `/v1/recommend` that rank, score and explain; and events."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from serving.schemas import Age, Choice, Features, Id, Index, K, RecommendedItem, Score, Step, UserState

Strategy = Literal["personal", "popular", "mean"]


class RecommendBatchRequest(Choice, kw_only=True):
    """What to recommend to each of several users, by the same rules."""

    user_ids: list[Id]


class UserRecommendation(msgspec.Struct):
    """Of one user: items, best first, and how they were found."""

    user_id: str
    items: list[RecommendedItem]
    strategy: Strategy
    cold_start: bool
    user: UserState | None


class Recommendations(msgspec.Struct):
    """One result for each user, in the order of the request."""

    results: list[UserRecommendation]
    index: Index
    model_version: str


class SimilarRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Items to look around; one, or a list whose common direction counts."""

    item_ids: Annotated[list[Id], Meta(min_length=1, description="items to be near to; they are not answered")]
    k: K = 20
    exclude: Annotated[list[Id], Meta(description="items never to answer")] = []
    candidates: Annotated[list[Id] | None, Meta(description="choose among these items only")] = None


class Similar(msgspec.Struct):
    """Items, nearest first; `score` is the cosine to the sum of the given items' directions."""

    items: list[RecommendedItem]
    missing: Annotated[list[str], Meta(description="given items that are unknown, and were left out")]
    index: Index
    model_version: str


class ScoreRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Items to score for a user."""

    user_id: Id
    item_ids: list[Id]
    fallback: Annotated[
        Literal["popular", "mean", "error"],
        Meta(description="for a user without history: popularity, nearness to the mean of popular items, or 404"),
    ] = "popular"
    features: Features = None


class Scores(msgspec.Struct):
    """What `/v1/recommend` ranks by, of each item in the order of the request, whether the user has seen it or not."""

    scores: list[
        Annotated[Score | None, Meta(description="null: never recommended, as unknown or without any positive event")]
    ]
    found: list[bool]
    age_s: list[Age | None]
    strategy: Strategy
    cold_start: bool
    user: UserState | None
    index: Index
    model_version: str


class ClockPart(msgspec.Struct):
    """What one clock of the model adds to a score."""

    recency: Annotated[float, Meta(description="of the clock: what a place in the history weighed at first")]
    score: Score


class FeaturePart(msgspec.Struct):
    """What a declared feature adds to a score, all its values together."""

    name: str
    of: Literal["item", "user", "request"]
    score: Score


class ItemParts(msgspec.Struct):
    """The dot product taken apart on the item's side: row, features and dense_bias add up to it."""

    row: Annotated[Score | None, Meta(description="of the item's own row")]
    features: list[FeaturePart]
    dense_bias: Annotated[Score | None, Meta(description="of dense layers, whatever the row; null: none")]


class ScoreParts(msgspec.Struct):
    """What a score is the sum of; `item` is the same dot product, without popularity, from the other side."""

    clocks: Annotated[list[ClockPart], Meta(description="dot product by clock; empty for a user without history")]
    user_id_vector: Annotated[Score | None, Meta(description="the user's own vector; null: the model has none")]
    dense_bias: Annotated[Score | None, Meta(description="of dense layers, whatever the history; null: none")]
    popularity: Score | None
    features: Annotated[list[FeaturePart], Meta(description="of the user and the request, as far as declared")]
    item: Annotated[ItemParts | None, Meta(description="null: the model declares no features of items")]
    transition: Annotated[
        Score | None, Meta(description="of what comes after the user's newest items; null: the model has none")
    ]


class Contribution(msgspec.Struct):
    """What an item of the user's history adds to the dot product."""

    item_id: str
    times: Annotated[int, Meta(description="places of the history that it has")]
    score: Score


class ItemState(msgspec.Struct):
    """The item's row as it was used."""

    step: Step
    age_s: Age | None
    events: int


class Explanation(msgspec.Struct):
    """Why an item stands where it stands for a user."""

    user_id: str
    item_id: str
    score: Annotated[Score | None, Meta(description="null: never recommended, no positive event has named the item")]
    rank: Annotated[
        float | None, Meta(description="1 is best, ties count half; among items the user has not seen and this one")
    ]
    seen: Annotated[bool, Meta(description="the item is in the user's history")]
    strategy: Literal["personal", "popular"]
    cold_start: bool
    parts: ScoreParts
    history: Annotated[
        list[Contribution],
        Meta(description="items that the user's vector is made of, largest addition first, and last what takes away"),
    ]
    user: UserState | None
    item: ItemState
    index: Index
    model_version: str


class Interaction(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """An event: a user and an item."""

    user_id: Id
    item_id: Id
    label: Annotated[float, Meta(ge=0, description="above 0 a positive, 0 an explicit negative")] = 1
    weight: Annotated[float, Meta(gt=0)] = 1
    timestamp: Annotated[int | str | None, Meta(description="ms since the epoch, or ISO 8601; null: now")] = None
    features: Annotated[Features, Meta(description="of the item, the user and the request, as declared")] = None


class EventsRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Events in the order in which they happened."""

    events: Annotated[list[Interaction], Meta(min_length=1)]


class Accepted(msgspec.Struct):
    """All events were acknowledged by the broker; they are learned within moments."""

    accepted: int


REQUESTS: tuple[type[msgspec.Struct], ...] = (RecommendBatchRequest, SimilarRequest, ScoreRequest, EventsRequest)
ANSWERS: tuple[type[msgspec.Struct], ...] = (Recommendations, Similar, Scores, Explanation, Accepted)
