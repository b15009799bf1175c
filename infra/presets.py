"""Named settings: what learning is worth, and what it costs.

A preset is a set of defaults. What the file or the environment says goes before it, key by key. ARCHITECTURE.md has
their measured HR@10 and events/s.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

Preset = Literal["quality", "balanced", "throughput"]

NAMES: tuple[str, ...] = get_args(Preset)


DEFAULT_FRESHNESS_MS = 80


class LearningSettings(BaseModel):
    """`[learning]` of towline.toml: defaults of `[model]`, `[trainer]` and `[ingest]` under one name."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    preset: Preset = Field("quality", description="how wide rows are, and how often an event is learned")
    freshness_target_ms: int = Field(
        DEFAULT_FRESHNESS_MS,
        ge=4,
        le=60_000,
        description="how old an event may be, as a rule, when answers have it, on a machine that keeps up. A quarter "
        "of it is [ingest] batch_wait_ms; where it is set and [trainer] apply_every is above 1, apply_every_ms too. "
        "Both give way to what is set for them",
    )
    loss: Literal["softmax", "bce"] = Field(
        "softmax", description="bce: labels are predicted, without replays and smoothing; see [trainer] loss"
    )


PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    # The defaults of the settings themselves with longer histories and transitions, and a micro-batch for each update.
    "quality": {"model": {"history_length": 50, "successors": 128}, "ingest": {"batch_events": 64}},
    # Half as wide, two passes with half as many replays.
    "balanced": {
        "model": {"dim": 64},
        "trainer": {"passes": 2, "replay": 2, "update_events": 128, "group": 384},
        "ingest": {"batch_events": 128},
    },
    # One pass, one replay an event, the optimizer runs in the store.
    "throughput": {
        "model": {"dim": 32},
        "trainer": {"passes": 1, "replay": 1, "update_events": 0, "group": 256, "apply_every": 1},
        "ingest": {"batch_events": 1024, "max_batch_events": 16384},
    },
}


def overlaid(values: dict[str, Any]) -> dict[str, Any]:
    """The settings with their preset's values where they have none of their own."""
    learning = values.get("learning", {})
    name = learning.get("preset", "quality") if isinstance(learning, dict) else "quality"
    preset = PRESETS.get(name) if isinstance(name, str) else None
    if preset is None:
        return values  # validation names the known ones
    if isinstance(learning, dict) and learning.get("loss") == "bce":
        preset = {
            **preset,
            "model": {**preset.get("model", {}), "successors": 0},  # labels are not predicted from them
            "trainer": {**preset.get("trainer", {}), "loss": "bce", "replay": 0, "label_smoothing": 0.0},
        }
    merged = dict(values)
    for section, defaults in preset.items():
        merged[section] = _under(merged.get(section, {}), defaults)
    given = learning.get("freshness_target_ms") if isinstance(learning, dict) else None
    # an event waits for its micro-batch, then for the one before it to be learned, then for its own: most of the
    # target is left for the work
    wait_ms = _whole(DEFAULT_FRESHNESS_MS if given is None else given) // 4
    if wait_ms:
        merged["ingest"] = _under(merged.get("ingest", {}), {"batch_wait_ms": wait_ms})
        trainer = merged.get("trainer", {})
        if given is not None and isinstance(trainer, dict) and _whole(trainer.get("apply_every", 1)) > 1:
            merged["trainer"] = _under(trainer, {"apply_every_ms": wait_ms})
    return merged


def _under(given: Any, defaults: dict[str, Any]) -> Any:
    """The section with defaults below what it has; what is no section is left to validation."""
    return {**defaults, **given} if isinstance(given, dict) else given


def _whole(value: Any) -> int:
    """A setting that is not validated yet, of a file or of the environment; 0: validation refuses it."""
    text = str(value)
    return int(text) if text.isdecimal() and text.isascii() else 0
