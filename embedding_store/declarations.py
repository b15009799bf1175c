"""Comparing and carrying table declarations. Pure."""

from __future__ import annotations

import msgspec
from pydantic import ValidationError

from embedding_store.errors import SpecConflict, SpecError
from embedding_store.spec import TableSpec


def to_json(spec: TableSpec) -> bytes:
    """The declaration as it is registered."""
    return msgspec.json.encode(spec.model_dump(mode="json"))


def from_json(document: bytes, table: str) -> TableSpec:
    """Inverse of `to_json`. Raises SpecError on what another release wrote."""
    try:
        return TableSpec.model_validate(msgspec.json.decode(document))
    except (ValidationError, msgspec.DecodeError) as e:
        raise SpecError(f"the stored declaration of table '{table}' can't be read by this release: {e}") from e


def check_same(stored: TableSpec, given: TableSpec) -> None:
    """Raises SpecConflict, with both values of every field that differs."""
    old, new = stored.model_dump(mode="json"), given.model_dump(mode="json")
    differences = [f"{k} is {old[k]!r}, got {new[k]!r}" for k in new if old[k] != new[k]]
    if differences:
        raise SpecConflict(
            f"table '{given.name}' is stored with another declaration: {'; '.join(differences)}; "
            "use the stored one, or another name"
        )
