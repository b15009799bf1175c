"""The effective configuration as TOML, secrets masked."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, SecretStr

from infra.config_faults import without_password

MASK = "***"


def as_toml(config: BaseModel) -> str:
    """All sections and keys with their values: valid TOML, fit for an issue: no secret, no URL's password."""
    lines: list[str] = []
    for section in type(config).model_fields:
        _section(section, getattr(config, section), lines)
    return "\n".join(lines).strip() + "\n"


def _section(name: str, model: BaseModel, lines: list[str]) -> None:
    lines += ["", f"[{name}]"]
    tables = []
    for key in type(model).model_fields:
        value = getattr(model, key)
        if isinstance(value, BaseModel):
            tables.append((f"{name}.{key}", value))
        elif isinstance(value, tuple) and value and isinstance(value[0], BaseModel):
            tables += [(f"[{name}.{key}]", one) for one in value]
        elif value is not None:  # TOML has no null
            lines.append(f"{key} = {_value(value)}")
    for table, value in tables:
        _section(table, value, lines)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, SecretStr):
        return f'"{MASK}"' if value.get_secret_value() else '""'
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(part) for part in value) + "]"
    text = without_password(str(value)).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'
