"""docs/CONFIGURATION.md from the settings models: `python -m infra.reference` writes it, a test compares it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from infra.config import PREFIX, TowlineConfig
from infra.schema import expectation, is_list, variants

PATH = Path(__file__).parent.parent / "docs" / "CONFIGURATION.md"

_HEAD = f"""# Configuration

<!-- Made by `python -m infra.reference` from the settings models; do not edit. -->

One TOML file: the one named by `--config`, else by the environment variable `TOWLINE_CONFIG`, else `./towline.toml`;
without any, the defaults below. A value from the environment wins over the file: `{PREFIX}<SECTION>__<KEY>`, for
instance `{PREFIX}KAFKA__BOOTSTRAP_SERVERS=broker-1:9092,broker-2:9092`. Lists are comma-separated there, or TOML. An
unknown section, key or variable is an error that names the nearest known one. `towline config` prints what is in
effect, with secrets masked.
"""


def markdown() -> str:
    """The whole page."""
    parts = [_HEAD]
    for name, field in TowlineConfig.model_fields.items():
        (model,) = variants(field.annotation)
        parts.append(_section(name, model))
    return "\n".join(parts)


def _section(name: str, model: type[BaseModel]) -> str:
    about = (model.__doc__ or "").strip().removeprefix(f"`[{name}]` of towline.toml").removeprefix(":").lstrip(". \n")
    about = " ".join(line.strip() for line in about.splitlines())
    about = about[:1].upper() + about[1:]
    rows = [f"## `[{name}]`", "", *([about, ""] if about else [])]
    if model.model_fields:
        rows += ["| key | takes | default | meaning |", "|---|---|---|---|"]
    inner = []
    for key, field in model.model_fields.items():
        rows.append(f"| `{key}` | {expectation(field)} | {_default(field)} | {_cell(field.description or '')} |")
        place = f"[{name}.{key}]" if is_list(field.annotation) else f"{name}.{key}"
        inner += [(place, part) for part in variants(field.annotation)]
    tables = [_section(table, part) for table, part in inner]
    return "\n".join([*rows, ""]) + ("\n" + "\n".join(tables) if tables else "")


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value: Any = field.get_default(call_default_factory=True)
    if isinstance(value, SecretStr) or value in ("", (), None):
        return "empty"
    if isinstance(value, BaseModel):
        return f"`{getattr(value, 'kind', 'as below')}`"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{list(value) if isinstance(value, tuple) else value}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    PATH.parent.mkdir(exist_ok=True)
    PATH.write_text(markdown(), encoding="utf-8")
