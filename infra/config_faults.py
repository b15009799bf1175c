"""One sentence for each fault in a configuration: where it stands, what it is, what was expected, how to mend it."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from infra.schema import expectation, find, is_secret, known_keys, nearest, variants


class Place(NamedTuple):
    """What a message needs to say where a name stands."""

    file: str
    text: str
    environment: dict[tuple[str, ...], str]

    def of(self, path: tuple[str, ...]) -> str:
        """ "environment variable X", "towline.toml line 7" or "the configuration"."""
        for start, variable in self.environment.items():
            if path[: len(start)] == start or start[: len(path)] == path:
                return f"environment variable {variable}"
        line = _line_of(self.text, path)
        return f"{self.file or 'the configuration'}{f' line {line}' if line else ''}"


def explain(root: type[BaseModel], detail: ErrorDetails, place: Place) -> str:
    """The sentence for one of pydantic's error details about a `root` model. Secrets are not shown."""
    path = _path(root, detail["loc"])
    where = place.of(path)
    if detail["type"] == "extra_forbidden":
        return f"{where}: {_unknown(root, path)}"
    field = find(root, path)
    name = _name(path)
    if field is None:
        return f"{where}: {name} is not usable: {detail['msg']}"
    reason = detail["msg"].removeprefix("Value error, ") if detail["type"] == "value_error" else ""
    if models := variants(field.annotation):
        got = "" if reason else _got(detail["input"])
        return f"{where}: {name}{got} is not usable: {reason or 'expected ' + expectation(field)}{_kinds(models)}"
    got = " (a secret)" if is_secret(field) else _got(detail["input"])
    note = f" ({field.description})" if field.description else ""
    remedy = "set one" if field.is_required() else f"correct it, or remove it for the default {_literal(field.default)}"
    if is_secret(field):
        remedy = "correct it, or remove it"
    return f"{where}: {name}{got} is not usable: expected {reason or expectation(field)}{note}; {remedy}"


def _unknown(root: type[BaseModel], path: tuple[str, ...]) -> str:
    *parents, name = path
    if not parents:
        near = nearest(name, root.model_fields)
        sections = ", ".join(root.model_fields)
        return f"unknown section [{name}]" + (f", did you mean [{near}]?" if near else f": the sections are {sections}")
    parent = find(root, tuple(parents))
    keys = known_keys(variants(parent.annotation)) if parent else {}
    section = f"[{'.'.join(parents)}]"
    for other, field in root.model_fields.items():  # a name that is right in another section is no misspelling
        if name in known_keys(variants(field.annotation)):
            return f"unknown key '{name}' in {section}: it belongs in [{other}]"
    if near := nearest(name, keys):
        return f"unknown key '{name}' in {section}, did you mean '{near}'?"
    return f"unknown key '{name}' in {section}: its keys are {', '.join(keys) or 'none yet'}"


def _path(root: type[BaseModel], location: tuple[int | str, ...]) -> tuple[str, ...]:
    """Pydantic's location without the tags of unions and the indices of lists, which are no keys of the file."""
    path: list[str] = []
    models: tuple[type[BaseModel], ...] = (root,)
    tag_is_next = False
    for step in location:
        if isinstance(step, int):
            continue
        if tag_is_next:
            tag_is_next = False
            continue
        field = known_keys(models).get(step)
        path.append(step)
        models = variants(field.annotation) if field else ()
        tag_is_next = len(models) > 1
    return tuple(path)


def _name(path: tuple[str, ...]) -> str:
    *parents, key = path
    return f"[{'.'.join(parents)}] {key}" if parents else f"[{key}]"


def _got(value: Any) -> str:
    return f" = {_literal(value)}" if isinstance(value, str | int | float | bool | list | tuple) else ""


def _kinds(models: tuple[type[BaseModel], ...]) -> str:
    return "; set its kind" if len(models) > 1 else ""


def _literal(value: Any) -> str:
    """As it would stand in the file, cut to a readable length."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_literal(part) for part in value) + "]"
    text = without_password(str(value))
    return f'"{text if len(text) <= 60 else text[:57] + "…"}"'


def without_password(text: str) -> str:
    """A URL's password is a secret wherever the URL is shown, before the host or in the query."""
    text = re.sub(r"(://[^/\s:]*:)[^/\s]+@", r"\1***@", text)
    return re.sub(r"([?&](?:password|ssl_password)=)[^&\s]+", r"\1***", text)


def _line_of(text: str, path: tuple[str, ...]) -> int:
    """Line of a key or section header, 0 if it is written in some other TOML way (inline tables, dotted keys)."""
    section: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[([^\[\]]+)\]\s*(#.*)?$", line):
            section = [part.strip().strip("\"'") for part in header[1].split(".")]
            if tuple(section) == path:
                return number
        elif (key := re.match(r"\s*[\"']?([A-Za-z0-9_-]+)[\"']?\s*=", line)) and (*section, key[1]) == path:
            return number
    return 0
