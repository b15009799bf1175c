"""What is measured: models and settings by name. All learn each event once and replay none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_LIBRDKAFKA = {"client": "librdkafka"}
_TRAINER = {"replay": 0, "replay_drop": 0.0, "evaluate_share": 0.001}
_WITHOUT_HISTORY = {"dim": 64, "clocks": [0.9], "learned_gates": False, "user_id_vector": True, "history_length": 1}


@dataclass(frozen=True, slots=True)
class Preset:
    """A configuration to be measured, and how many events a record of its topic holds.

    trainers: one waits for the store while the other learns. A client that takes record by record leaves no processor
    free for a second.
    """

    sections: dict[str, dict[str, Any]]
    per_record: int = 100
    trainers: int = 2

    def config(self, batch_events: int | None = None, freshness_target_ms: int | None = None) -> dict[str, Any]:
        """Sections of a TowlineConfig. None: as configured."""
        ingest = {} if batch_events is None else {"batch_events": batch_events, "max_batch_events": batch_events}
        fresh = {} if freshness_target_ms is None else {"freshness_target_ms": freshness_target_ms}
        return {"learning": {"preset": "throughput", **fresh}, **self.sections, "ingest": ingest}


_DENSE = {
    "model": {**_WITHOUT_HISTORY, "dense_layers": [64, 32], "seen_length": 20},
    "trainer": {**_TRAINER, "group": 64, "dense_sync_every": 64},
}

PRESETS = {
    # two towers 64 → 64 → 32, on a vector of the user's own
    "dense": Preset({**_DENSE, "kafka": _LIBRDKAFKA}),
    # the same without layers
    "no_dense": Preset(
        {
            "model": {**_WITHOUT_HISTORY, "seen_length": 20},
            "trainer": {**_TRAINER, "group": 64},
            "kafka": _LIBRDKAFKA,
        }
    ),
    # users are pooled from their newest 20 items by two clocks of 32 dimensions, gates learned
    "history": Preset(
        {
            "model": {"dim": 64, "seen_length": 20},
            "trainer": {**_TRAINER, "group": 64, "dense_sync_every": 64},
            "kafka": _LIBRDKAFKA,
        }
    ),
    # as dense, by the client that is the default, and one event a record by both
    "dense_kafka_python": Preset(_DENSE),
    "single_kafka_python": Preset(_DENSE, per_record=1, trainers=1),
    "single_librdkafka": Preset({**_DENSE, "kafka": _LIBRDKAFKA}, per_record=1, trainers=1),
}
LIVE = "no_dense"
