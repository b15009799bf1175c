"""Features of a request: what the model declares, against what was sent."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

import msgspec

from embedding_store.item_filter import BadFilter, ItemFilter, read_filter
from native.features import NO_FEATURES, REQUEST, BadValue, FeatureSchema, FeatureValues, shown_names
from serving.problems import invalid
from serving.schemas import Filter
from serving.service import Live


def given(live: Live, features: Mapping[str, Any] | msgspec.UnsetType | None, users: int = 1) -> FeatureValues | None:
    """`users` rows, each of all the values; None where there are none. Raises Problem 422."""
    if features is msgspec.UNSET or not features:
        return None
    schema = _schema(live)
    for name in features:
        number = schema.by_name.get(name)
        if number is not None and schema.declared[number].side == REQUEST:
            continue
        shown, known = name[:100], shown_names(schema, REQUEST)
        if number is not None:
            detail = f"'{shown}' is no feature of requests: what events tell of it is kept; leave it out"
        else:
            near = difflib.get_close_matches(name, schema.by_name, n=1)
            remedy = f"did you mean '{near[0]}'?" if near else f"the model's features of requests are {known}"
            detail = f"unknown feature '{shown}': {remedy}"
        raise invalid(f"features.{shown}", detail)
    try:
        entries, _ = schema.read(features)
    except BadValue as error:
        raise invalid("features", f"features: {error}") from None
    return FeatureValues.of([entries] * users)


def wanted(live: Live, asked: Filter) -> ItemFilter | None:
    """What items must pass to be answered; None: anything. Raises Problem 422."""
    if not asked:
        return None
    try:
        return read_filter(_schema(live), asked)
    except BadFilter as error:
        raise invalid(f"filter.{error.name}" if error.name else "filter", f"filter: {error}") from None


def _schema(live: Live) -> FeatureSchema:
    return NO_FEATURES if live.mirror.features is None else live.mirror.features.schema


def from_query(live: Live, text: str | None) -> FeatureValues | None:
    """Of a query parameter, which holds a JSON object. Raises Problem 422."""
    if text is None:
        return None
    try:
        features = msgspec.json.decode(text, type=dict[str, Any] | None)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise invalid("features", f'features is no JSON object: {error}; send one like {{"device":"phone"}}') from None
    return given(live, features)
