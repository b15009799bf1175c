"""What a run is: its seed, its length, and the configuration of the product under it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from infra.config import TowlineConfig
from ingest.settings import Client
from tests.chaos.linear import DIM, PARTITIONS
from tests.chaos.topic_log import FEATURES

Backend = Literal["stock", "module"]
Model = Literal["linear", "towers"]


@dataclass(frozen=True, slots=True)
class Plan:
    """One run. Faults and events follow from `seed`; when exactly each happens does not."""

    folder: Path
    seed: int = 1
    seconds: float = 420.0
    most_faults: int = 1_000_000
    eviction: bool = False
    backend: Backend = "module"
    model: Model = "linear"
    client: Client = "kafka-python"
    features: bool = False
    trainers: int = 3
    users: int = 400
    items: int = 300
    events_per_s: float = 250.0

    def config(self, bootstrap_servers: str, redis_url: str, instance: str) -> TowlineConfig:
        """Of one trainer. Time-outs are the shortest that the servers allow, for faults to come quickly."""
        model: dict[str, Any] = {
            "dim": DIM,
            "shards": 2,
            "history_length": 8,
            "seen_length": 64,
            "user_id_vector": True,
        }
        trainer: dict[str, Any] = {"group": 16, "reconcile_every_s": 0.5, "apply_every": 2, "instance": instance}
        if self.model == "linear":
            # initial values vanish beside the first effect; SGD of rate 1 adds effects as they are
            model |= {"optimizer": {"kind": "sgd", "learning_rate": 1.0}, "initial_std": 1e-30}
            model |= {"learned_gates": False, "regularization": {"kind": "none"}}
            trainer |= {"replay": 0, "passes": 1, "update_events": 0, "row_penalty": 0.0, "evaluate_share": 0.0}
            trainer |= {"guard": "off"}  # its losses are not those of a model
        if self.features:
            model["features"] = [
                {"name": FEATURES["item"], "of": "item", "kind": "categories"},
                {"name": FEATURES["user"], "of": "user", "kind": "category"},
                {"name": "device", "of": "request", "kind": "category"},
            ]
        if self.eviction:
            model |= self._limits()
        document = {
            "kafka": {
                "bootstrap_servers": bootstrap_servers,
                "client": self.client,
                "partitions": PARTITIONS,
                "session_timeout_ms": SESSION_TIMEOUT_MS,
                "request_timeout_ms": 7000,
            },
            "ingest": {"batch_events": 64, "batch_wait_ms": 20},
            "redis": {"url": redis_url, "timeout_s": 2.0, "backend": self.backend},
            "model": model,
            "trainer": trainer,
            "local": {"state_dir": self.folder, "broker": "kafka"},
        }
        return TowlineConfig.model_validate(document)

    def _limits(self) -> Mapping[str, Any]:
        """Room for two thirds of the ids, and a life shorter than the run."""
        return {
            "item_max_rows": 2 * self.items // 3,
            "user_max_rows": 2 * self.users // 3,
            "item_ttl_s": 20.0,
            "user_ttl_s": 20.0,
            "item_admit_after": 3,
        }


SESSION_TIMEOUT_MS = 6000
"""Apache Kafka's `group.min.session.timeout.ms`."""
