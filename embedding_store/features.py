"""`[[model.features]]`: what is known of items, users and requests beside their ids."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Literal

from pydantic import Field, field_validator, model_validator

from embedding_store.frozen import Frozen
from native.features import (
    CATEGORIES,
    CATEGORY,
    ITEM,
    MAX_VALUES,
    NUMBER,
    REQUEST,
    STORED,
    USER,
    Declared,
    FeatureSchema,
)

RESERVED = ("user_id", "item_id", "label", "weight", "timestamp", "features")
"""Fields of an event: a file's column of such a name is that."""

MAX_FEATURES = 32
RECORD_BYTES = MAX_VALUES * STORED.itemsize
"""Of the largest record of an id's features."""

_SIDES = {"item": ITEM, "user": USER, "request": REQUEST}
_KINDS = {"category": CATEGORY, "categories": CATEGORIES, "number": NUMBER}
_DOUBLINGS = 64


class Feature(Frozen):
    """A feature of items, users or requests: each of its values has a row in table `feature`, added to the vector of
    its side before that side's layers. A value that no event has taught adds nothing, nor does a missing one.
    """

    name: str = Field(
        pattern=r"^[a-z][a-z0-9_]{0,31}$", description="what events and requests call it, in their `features`"
    )
    of: Literal["item", "user", "request"] = Field(
        description="item, user: the newest value told is kept, by any event or one of that id alone; request: what an "
        "event or a request brings is its own"
    )
    kind: Literal["category", "categories", "number"] = Field(
        description="category: one text or integer; categories: a list of them, the mean of whose rows is added; "
        "number: falls in a bucket, which has a row"
    )
    boundaries: tuple[float, ...] = Field(
        (), description="of a number's buckets, rising: [18, 25] is below 18, 18 to below 25, 25 and above"
    )
    log_buckets: bool = Field(False, description="of a number, in place of boundaries: ±(2^k − 1)")
    hash_buckets: int = Field(
        0,
        ge=0,
        le=2**31,
        description="of categories: they share so many rows by hash, where their number has no bound; 0: a row each",
    )

    @field_validator("name")
    @classmethod
    def _is_free(cls, name: str) -> str:
        if name in RESERVED:
            raise ValueError(f"a feature can't be named '{name}': that is a field of every event; name it otherwise")
        return name

    @field_validator("boundaries")
    @classmethod
    def _rise(cls, boundaries: tuple[float, ...]) -> tuple[float, ...]:
        if len(boundaries) > 1000:
            raise ValueError(f"at most 1000 boundaries are taken, got {len(boundaries)}")
        if not all(map(math.isfinite, boundaries)):
            raise ValueError(f"boundaries must be finite, got {list(boundaries)}: the outer buckets are open anyway")
        for low, high in itertools.pairwise(boundaries):
            if low >= high:
                raise ValueError(f"boundaries must rise, and {high:g} comes after {low:g}: sort them, each once")
        return boundaries

    @model_validator(mode="after")
    def _fits_its_kind(self) -> Feature:
        if self.kind == "number":
            if self.hash_buckets:
                raise ValueError(f"feature '{self.name}' is a number: hash_buckets are for categories; leave them out")
            if bool(self.boundaries) == self.log_buckets:
                both = "boundaries and log_buckets are both" if self.log_buckets else "neither of them is"
                raise ValueError(
                    f"feature '{self.name}' is a number, which needs boundaries or log_buckets = true, and {both} set"
                )
        elif self.boundaries or self.log_buckets:
            raise ValueError(
                f"feature '{self.name}' is of kind '{self.kind}': boundaries and log_buckets are for kind 'number'; "
                "leave them out"
            )
        return self

    @property
    def declared(self) -> Declared:
        """As kernels know it."""
        boundaries = self.boundaries
        if self.log_buckets:
            above = [2.0**k - 1.0 for k in range(1, _DOUBLINGS + 1)]
            boundaries = (*(-edge for edge in reversed(above)), *above)
        return Declared(self.name, _SIDES[self.of], _KINDS[self.kind], boundaries, self.hash_buckets)


def check_features(features: Sequence[Feature]) -> None:
    """Raises ValueError for what can't stand side by side."""
    if len(features) > MAX_FEATURES:
        raise ValueError(f"at most {MAX_FEATURES} features are taken, got {len(features)}")
    names = [feature.name for feature in features]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"feature '{name}' is declared {names.count(name)} times: name each once, of one side")
    hashes = schema_of(features).hashes.tolist()
    for i, number in enumerate(hashes):
        if number in hashes[:i]:
            raise ValueError(
                f"features '{names[hashes.index(number)]}' and '{names[i]}' have the same 32-bit hash: rename one"
            )


def schema_of(features: Sequence[Feature]) -> FeatureSchema:
    """Compiled for kernels."""
    return FeatureSchema([feature.declared for feature in features])
