"""The module's error replies as errors of the store, in the sentences of `embedding_store.shard`. Pure."""

from __future__ import annotations

import re

from embedding_store.contract import Source
from embedding_store.errors import (
    BadRequest,
    GenerationError,
    SeekConflict,
    SpecConflict,
    StoreError,
    StoreMisconfigured,
    StoreUnavailable,
)
from embedding_store.redis_store.client import Address, Refusal, error_of
from embedding_store.shard import clock_full, other_generation, other_offset

_GENERATION = re.compile(r"TOWGEN stored (\d+) given (\d+)")
_CLOCK = re.compile(r"TOWBAD the clock is (\d+): (\d+) events more")
_OFFSET = re.compile(r"TOWSEEK offset of (.+):(\d+) is (-?\d+|unset), expected (-?\d+|unset)", re.DOTALL)


def is_missing(refusal: Refusal) -> bool:
    """Whether the shard's key is not there."""
    return str(refusal).startswith("TOWNONE")


def asks_for_places(refusal: Refusal) -> bool:
    """Whether the shard applied nothing because it must know where in time own events are."""
    return str(refusal).startswith("TOWPLACES")


def refused(refusal: Refusal, place: str, address: Address) -> StoreError:
    """What to raise for a refusal by the shard that `place` names, on the node at `address`."""
    text = str(refusal)
    if found := _GENERATION.match(text):
        return other_generation(place, int(found[1]), int(found[2]))
    if found := _CLOCK.match(text):
        return clock_full(place, int(found[1]), int(found[2]))
    if found := _OFFSET.match(text):
        return other_offset(place, Source(found[1], int(found[2])), _offset(found[3]), _offset(found[4]))
    code, _, sentence = text.partition(" ")
    if code == "TOWSPEC":
        return SpecConflict(
            f"{place} is stored with another declaration: {sentence}; use the stored one, or another name"
        )
    plain = {"TOWBAD": BadRequest, "TOWKIND": BadRequest, "TOWGEN": GenerationError, "TOWSEEK": SeekConflict}.get(code)
    if plain is not None:  # TOWSEEK too: a long source's name takes the place of the numbers
        return plain(f"{place}: {sentence}")
    if code == "WRONGTYPE":
        return StoreMisconfigured(f"{place} is damaged, something else writes to its key: {text}")
    if is_missing(refusal):
        return StoreUnavailable(f"{place} is lost time and again: {text}; retry")
    return error_of(refusal, address)


def _offset(text: str) -> int | None:
    return None if text == "unset" else int(text)
