"""Where the time of an event goes between broker and store, by the trainer's own metrics."""

from __future__ import annotations

import urllib.request
from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families

Told = Mapping[str, float]
"""Name of a sample with its label's value, if any → value."""


def told(port: int) -> Told:
    """Sums and counts that a trainer on this machine tells now."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:
        text = response.read().decode()
    return {
        " ".join([sample.name, *sample.labels.values()]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.name.endswith(("_bucket", "_created"))
    }


def stages(before: Told, after: Told) -> dict[str, float]:
    """Means between the two: ms a micro-batch by stage, events of one, and ms from production until it was applied.

    The last is of a flush's newest record.
    """

    def since(name: str) -> float:
        return after.get(name, 0.0) - before.get(name, 0.0)

    def mean(histogram: str, label: str = "") -> float:
        behind = f" {label}" if label else ""
        n = since(f"towline_trainer_{histogram}_seconds_count{behind}")
        return round(1e3 * since(f"towline_trainer_{histogram}_seconds_sum{behind}") / max(1.0, n), 2)

    events, batches = since("towline_trainer_events_total"), since("towline_trainer_batches_total")
    return {
        "batch_events": round(events / max(1.0, batches), 1),
        **{f"{stage}_ms": mean("stage", stage) for stage in ("poll", "read", "learn", "flush")},
        "apply_ms": mean("apply"),
        "newest_applied_ms": mean("delay"),
    }
