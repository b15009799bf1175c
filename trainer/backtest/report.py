"""Ranks to the figures of a back-test."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from trainer.backtest.replayed import Replayed
from trainer.label_scores import LabelTests, auc, log_losses
from trainer.scores import Paired

F64 = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]

_POINTS = 40  # of the curve over time


def figures(ranks: F64, late: Bool, k: int = 10) -> dict[str, float | None]:
    """HR@k, the same over the tests that are `late` (m,), NDCG@k and MRR of tests (m,); None without any."""
    hits = ranks <= k
    gains = np.where(hits, 1.0 / np.log2(1.0 + ranks), 0.0)
    values = {f"hr{k}": hits, f"hr{k}_late": hits[late], f"ndcg{k}": gains, "mrr": 1.0 / ranks}
    return {name: round(float(value.mean()), 5) if len(value) else None for name, value in values.items()}


def report(run: Replayed, k: int = 10) -> dict[str, Any]:
    """Everything a run has to say, ready for JSON."""
    paired = Paired()
    late = run.place >= run.events // 2  # the last half of the stream, whatever the warm-up
    document: dict[str, Any] = {
        "events": run.events,
        "tests": len(run.ranks),
        "warmup_events": run.warmup,
        **figures(run.ranks, late, k),
        "popularity": figures(run.popular, late, k),
        "warm": {"tests": int(run.warm.sum()), **figures(run.ranks[run.warm], late[run.warm], k)},
        "cold": {"tests": int((~run.warm).sum()), **figures(run.ranks[~run.warm], late[~run.warm], k)},
    }
    if run.frozen is not None:
        paired.add(run.ranks[late] <= k, run.frozen[late] <= k)
        document["frozen"] = {
            **figures(run.frozen, late, k),
            "late_z": round(paired.z, 2),
            "late_p_value": float(f"{paired.p_value:.2g}"),
        }
    if run.labels is not None:
        document["labels"] = label_figures(run.labels)
    document |= {
        "over_time": over_time(run, k),
        "seconds": round(run.wall_s, 2),
        "cpu_seconds": round(run.cpu_s, 2),
        "events_per_s": round(run.events / run.wall_s, 1),
        "events_per_cpu_s": round(run.events / run.cpu_s, 1),
        "dead_letters": run.dead_letters,
        "quarantined_steps": run.quarantined,
    }
    return document


def label_figures(tests: LabelTests) -> dict[str, float | int | None]:
    """Log loss, AUC, and calibration (mean predicted over mean observed) of label events; None where undefined."""
    if not len(tests.label):
        return {"tests": 0, "positive_share": None, "log_loss": None, "auc": None, "calibration": None}
    observed, ranked = float(tests.label.mean()), auc(tests.predicted, tests.label)
    return {
        "tests": len(tests.label),
        "positive_share": round(observed, 5),
        "log_loss": round(float(log_losses(tests.predicted, tests.label).mean()), 5),
        "auc": None if math.isnan(ranked) else round(ranked, 5),
        "calibration": round(float(tests.predicted.mean()) / observed, 5) if observed else None,
    }


def over_time(run: Replayed, k: int = 10, points: int = _POINTS) -> list[dict[str, float]]:
    """HR@k in `points` stretches of equally many tests, each with the number of its last event."""
    size = max(1, math.ceil(len(run.ranks) / points))
    lines = {"model": run.ranks, "popularity": run.popular}
    if run.frozen is not None:
        lines["frozen"] = run.frozen
    return [
        {"event": int(run.place[min(at + size, len(run.place)) - 1])}
        | {name: round(float((ranks[at : at + size] <= k).mean()), 5) for name, ranks in lines.items()}
        for at in range(0, len(run.ranks), size)
    ]
