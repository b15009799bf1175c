"""One TOML file to one frozen object: the composition root of all rooms' settings.

Order of authority: environment (`TOWLINE_<SECTION>__<KEY>`), then the file, then defaults. A name that nobody knows
is an error in both. The whole is read once, here, and passed down.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, get_origin

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, model_validator

from embedding_store.model import ModelSettings
from embedding_store.settings import RedisSettings
from infra.config_faults import Place, explain
from infra.errors import ConfigError
from infra.local.settings import LocalSettings
from infra.presets import LearningSettings, Preset, overlaid
from infra.schema import find, nearest
from ingest.settings import IngestSettings, KafkaSettings
from serving.settings import ServingSettings
from trainer.settings import TrainerSettings

FILE_NAME = "towline.toml"
PREFIX = "TOWLINE_"
_CONFIG = "TOWLINE_CONFIG"
HANDED = "TOWLINE_HANDED_CONFIG"  # a whole configuration from a parent process of ours: nothing else is read then


class TowlineConfig(BaseModel):
    """All settings of one deployment, one section a room; a preset fills in what they leave out."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)  # inputs hold secrets

    learning: LearningSettings = Field(default_factory=LearningSettings)
    kafka: KafkaSettings = Field(default_factory=KafkaSettings)
    ingest: IngestSettings = Field(default_factory=IngestSettings)
    redis: RedisSettings = Field(default_factory=RedisSettings)
    model: ModelSettings = Field(default_factory=ModelSettings)
    trainer: TrainerSettings = Field(default_factory=TrainerSettings)
    serving: ServingSettings = Field(default_factory=ServingSettings)
    local: LocalSettings = Field(default_factory=LocalSettings)

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, values: Any) -> Any:
        return overlaid(values) if isinstance(values, dict) else values


class Source(NamedTuple):
    """Where the configuration was read from; `file` is None when defaults and environment are all there is."""

    file: Path | None
    config: TowlineConfig


def load(path: Path | None = None, environ: Mapping[str, str] | None = None, *, preset: Preset | None = None) -> Source:
    """Reads `path`, else `TOWLINE_CONFIG`, else ./towline.toml if it exists, and overlays the environment.

    preset: of who names none, if not the default.

    Raises ConfigError: a named file that is missing, no TOML, an unknown name, a value that is not usable.
    """
    environ = os.environ if environ is None else environ
    if path is None and HANDED in environ:
        return Source(None, TowlineConfig.model_validate_json(environ[HANDED]))
    file = _locate(path, environ)
    values, text = _read(file)
    place = Place(file=str(file) if file else "", text=text, environment=_overlay(values, environ))
    if preset is not None and isinstance(learning := values.setdefault("learning", {}), dict):
        learning.setdefault("preset", preset)
    try:
        config = TowlineConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigError("\n".join(explain(TowlineConfig, detail, place) for detail in error.errors())) from None
    base = file.parent if file else Path.cwd()
    local = config.local.model_copy(update={"state_dir": (base / config.local.state_dir.expanduser()).resolve()})
    return Source(file, config.model_copy(update={"local": local}))


def hand_over(config: TowlineConfig) -> str:
    """JSON for `HANDED`, secrets in clear: only for the environment of a child process."""
    return json.dumps(config.model_dump(mode="python"), default=_plain)


def _plain(value: object) -> str:
    return value.get_secret_value() if isinstance(value, SecretStr) else str(value)


def _locate(path: Path | None, environ: Mapping[str, str]) -> Path | None:
    named, by = (path, "--config") if path else (Path(environ.get(_CONFIG, "")), _CONFIG)
    if named == Path():
        here = Path(FILE_NAME)
        return here if here.is_file() else None
    if not named.is_file():
        raise ConfigError(
            f"there is no file {named} (named by {by}): correct the path, or leave it out for the defaults"
        )
    return named


def _read(file: Path | None) -> tuple[dict[str, Any], str]:
    if file is None:
        return {}, ""
    try:
        text = file.read_text(encoding="utf-8")
        return tomllib.loads(text), text
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is not TOML: {error}; text goes in quotes, sections in [brackets]") from None
    except OSError as error:
        raise ConfigError(f"{file} can't be read: {error.strerror}") from None


def _overlay(values: dict[str, Any], environ: Mapping[str, str]) -> dict[tuple[str, ...], str]:
    """Writes the environment's values over the file's; returns the variable behind each path, for messages."""
    variables: dict[tuple[str, ...], str] = {}
    for name, raw in sorted(environ.items()):
        if not name.startswith(PREFIX) or _is_service_link(name, environ):
            continue
        path = tuple(name[len(PREFIX) :].lower().split("__"))
        if len(path) == 1:
            _refuse_single_underscore(name)
            continue
        table = values
        for part in path[:-1]:
            inner = table.setdefault(part, {})
            if not isinstance(inner, dict):
                raise ConfigError(f"{name} sets a key inside '{part}', which is a plain value: remove one of the two")
            table = inner
        table[path[-1]] = _parse(name, path, raw)
        variables[path] = name
    return variables


def _refuse_single_underscore(name: str) -> None:
    """`TOWLINE_KAFKA_TOPIC`, `TOWLINE_KAFKA` and `TOWLINE_CONFG` would silently do nothing.

    Other names without a double underscore are not settings: somebody else may use them.
    """
    if name in (_CONFIG, HANDED):
        return
    section, _, key = name[len(PREFIX) :].lower().partition("_")
    if not key and section in TowlineConfig.model_fields:
        raise ConfigError(
            f"environment variable {name} is not a setting: it names a section; a key of it is {name}__<KEY>"
        )
    if difflib.get_close_matches(name, [_CONFIG], cutoff=0.85):
        raise ConfigError(f"environment variable {name} is not a setting, did you mean {_CONFIG}?")
    if section in TowlineConfig.model_fields and key:
        raise ConfigError(
            f"environment variable {name} is not a setting: section and key are joined by two underscores, "
            f"as in {PREFIX}{section.upper()}__{_near_key(section, key).upper()}"
        )


def _is_service_link(name: str, environ: Mapping[str, str]) -> bool:
    """Kubernetes tells every pod of each service beside it: TOWLINE_SERVING_SERVICE_HOST, TOWLINE_SERVING_PORT, ..."""
    link = re.fullmatch(r"(\w+?)_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_\w+)?)", name)
    return link is not None and f"{link[1]}_SERVICE_HOST" in environ


def _near_key(section: str, key: str) -> str:
    known = find(TowlineConfig, (section, key))
    model = TowlineConfig.model_fields[section].annotation
    assert isinstance(model, type) and issubclass(model, BaseModel)  # noqa: PT018, S101
    return key if known else nearest(key, model.model_fields) or key


def _parse(name: str, path: tuple[str, ...], raw: str) -> Any:
    """Lists and tables are TOML, or comma-separated for a list; the rest is left to the model's own conversion."""
    field = find(TowlineConfig, path)
    if raw.lstrip().startswith(("[", "{")):
        try:
            return tomllib.loads(f"value = {raw}")["value"]
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"environment variable {name} is not a TOML value: {error}") from None
    if field is not None and get_origin(field.annotation) is tuple:
        return [part.strip() for part in raw.split(",") if part.strip()]
    return raw
