"""The base of every declaration: immutable, hashable, no unknown keys."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    """A declaration; two with the same values are the same."""

    model_config = ConfigDict(frozen=True, extra="forbid")
