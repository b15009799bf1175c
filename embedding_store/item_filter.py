"""Which items may be answered: conditions on their declared features, all of which an item must meet."""

from __future__ import annotations

import difflib
import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from native.features import ITEM, NUMBER, BadValue, Declared, FeatureSchema, bucket_text, keys_of, shown_names
from native.identity import key_and_check

MAX_CONDITIONS = 64
"""Of one filter: each has a bit of a word."""
MAX_KEYS = 4096
"""Values and buckets of one filter."""


class BadFilter(BadValue):
    """A filter that can't be taken. The message names feature, value and remedy; `name` is the feature's."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


@dataclass(frozen=True, slots=True)
class ItemFilter:
    """An item passes if, of each condition, it has a value with one of the keys. Equal filters are equal."""

    any_of: tuple[tuple[int, ...], ...]  # rising keys of rows of table `feature`


def read_filter(schema: FeatureSchema, wanted: Mapping[str, object]) -> ItemFilter | None:
    """A decoded `filter` object: by name a category, a list of categories, or `{"min": x, "max": y}` of a number.

    A range is x ≤ number < y, and one of the two may be missing. Items' numbers are known by bucket alone, so that a
    range begins and ends at declared boundaries, and what passes is exact. None where nothing is asked for. Raises
    BadFilter.
    """
    if len(wanted) > MAX_CONDITIONS:
        raise BadFilter("", f"filter names {len(wanted)} features; at most {MAX_CONDITIONS} are taken")
    any_of = tuple(sorted(tuple(sorted(set(_keys(_named(schema, name), value)))) for name, value in wanted.items()))
    if (total := sum(map(len, any_of))) > MAX_KEYS:
        raise BadFilter("", f"filter holds {total} values and buckets; at most {MAX_KEYS} are taken: ask for fewer")
    return ItemFilter(any_of) if any_of else None


def _named(schema: FeatureSchema, name: str) -> Declared:
    number = schema.by_name.get(name)
    shown, known = name[:100], shown_names(schema, ITEM)
    if number is None:
        own = [one.name for one in schema.declared if one.side == ITEM]
        near = difflib.get_close_matches(name, own, n=1)
        did_you = f"did you mean '{near[0]}'? " if near else ""
        raise BadFilter(shown, f"unknown feature '{shown}': {did_you}the model's features of items are {known}")
    feature = schema.declared[number]
    if feature.side != ITEM:
        raise BadFilter(shown, f"'{shown}' is no feature of items: those of the model are {known}")
    if feature.hash_buckets:
        raise BadFilter(
            shown,
            f"of '{shown}' the {feature.hash_buckets} hash buckets are kept, not the values, so that others would pass "
            "too: declare it without hash_buckets, or send candidates",
        )
    return feature


def _keys(feature: Declared, value: object) -> list[int]:
    if feature.kind == NUMBER:
        return _keys_in_range(feature, value)
    values = value if isinstance(value, list | tuple) else [value]
    if not values:
        raise BadFilter(feature.name, f"{feature.name} names no category, which no item has: leave it out")
    if any(isinstance(one, Mapping | list | tuple) for one in values):
        raise BadFilter(feature.name, f"{feature.name} holds categories: send one of them, or a flat list")
    try:
        return [key for one in values for key in keys_of(feature, one)]
    except BadValue as error:
        raise BadFilter(feature.name, str(error)) from None


def _keys_in_range(feature: Declared, value: object) -> list[int]:
    name, bounds = feature.name, feature.boundaries
    if not isinstance(value, Mapping) or not value.keys() <= {"min", "max"}:
        raise BadFilter(
            name, f'{name} is a number: send a range such as {{"min": {bounds[0]:g}}}, with min, max or both'
        )
    low, high = (_bound(feature, value.get(end), end) for end in ("min", "max"))
    if low is None and high is None:
        raise BadFilter(name, f"{name} has neither min nor max: send one of them, or leave it out")
    first = 0 if low is None else bisect_left(bounds, low) + 1
    last = len(bounds) if high is None else bisect_left(bounds, high)
    if first > last:
        raise BadFilter(name, f"{name}: min {low:g} is not below max {high:g}, and no number is in between")
    return [key_and_check(bucket_text(feature, bucket))[0] for bucket in range(first, last + 1)]


def _bound(feature: Declared, value: object, end: str) -> float | None:
    """An end of a range, which is one of the boundaries."""
    if value is None:
        return None
    try:
        number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    except OverflowError:  # an integer beyond float64
        number = math.nan
    if math.isnan(number):
        raise BadFilter(feature.name, f"{feature.name}: {end} is no number")
    if number not in feature.boundaries:
        raise BadFilter(
            feature.name,
            f"{feature.name}: {end} {number:g} is no boundary, and items' numbers are known by bucket alone: use "
            f"{_near(feature.boundaries, number)}",
        )
    return number


def _near(bounds: Sequence[float], number: float) -> str:
    at = bisect_left(bounds, number)
    return " or ".join(f"{bound!r}" for bound in bounds[max(0, at - 1) : at + 1])
