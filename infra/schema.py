"""Walking the settings models: known names, expectations in words, secrets. For errors, `towline config` and docs."""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterable
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen
from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

_WORDS = {int: "a whole number", float: "a number", str: "text", bool: "true or false", SecretStr: "text (a secret)"}
_SIGNS = {Ge: "≥", Gt: ">", Le: "≤", Lt: "<"}


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name most like `name`; empty if none is near."""
    return next(iter(difflib.get_close_matches(name.lower(), list(known), n=1, cutoff=0.5)), "")


def is_list(annotation: Any) -> bool:
    """Whether a field holds a list, of tables or of plain values."""
    return get_origin(annotation) is tuple


def variants(annotation: Any) -> tuple[type[BaseModel], ...]:
    """The models that a field, or each of its list, may hold: none for a plain value, several for a tagged union."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return (annotation,)
    if get_origin(annotation) is Annotated or is_list(annotation):
        return variants(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return tuple(model for part in get_args(annotation) for model in variants(part))
    return ()


def known_keys(models: Iterable[type[BaseModel]]) -> dict[str, FieldInfo]:
    """Keys of all the models, first declaration wins."""
    keys: dict[str, FieldInfo] = {}
    for model in models:
        for name, field in model.model_fields.items():
            keys.setdefault(name, field)
    return keys


def find(model: type[BaseModel], path: tuple[str, ...]) -> FieldInfo | None:
    """The field at a path of keys, through tagged unions."""
    models: tuple[type[BaseModel], ...] = (model,)
    field: FieldInfo | None = None
    for name in path:
        field = known_keys(models).get(name)
        if field is None:
            return None
        models = variants(field.annotation)
    return field


def expectation(field: FieldInfo) -> str:
    """What a field takes, in words: "a whole number ≥ 1 and ≤ 4096"."""
    words = [_type_words(field.annotation)]
    bounds = []
    for rule in field.metadata:
        for kind, sign in _SIGNS.items():
            if isinstance(rule, kind):
                bounds.append(f"{sign} {getattr(rule, kind.__name__.lower()):,}".replace(",", "_"))
        if isinstance(rule, MinLen) and rule.min_length == 1:
            words.append("not empty")
        if isinstance(rule, MaxLen):
            words.append(f"at most {rule.max_length} characters")
    return ", ".join(words) + (" " + " and ".join(bounds) if bounds else "")


def is_secret(field: FieldInfo) -> bool:
    """Whether its value, or one in its list, must never be shown."""
    return field.annotation is SecretStr or SecretStr in get_args(field.annotation)


def _type_words(annotation: Any) -> str:
    origin = get_origin(annotation)
    if origin is Literal:
        return "one of " + ", ".join(f'"{choice}"' if choice else '""' for choice in get_args(annotation))
    if is_list(annotation) and variants(annotation):
        return "a list of tables"
    if origin is tuple:
        inner = _type_words(get_args(annotation)[0]).removeprefix("a ").removeprefix("an ")
        return f"a list of {inner}{'s' if inner.endswith('number') else ''}"
    if models := variants(annotation):
        kinds = [
            _type_words(model.model_fields["kind"].annotation)[7:] for model in models if "kind" in model.model_fields
        ]
        return f"a table with kind = {' or '.join(kinds)}" if kinds else "a table"
    if origin in (Union, types.UnionType):
        return " or ".join(_type_words(part) for part in get_args(annotation) if part is not type(None))
    return _WORDS.get(annotation, "a path" if getattr(annotation, "__name__", "") == "Path" else str(annotation))
