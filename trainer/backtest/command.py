"""The shell of a back-test: file in, progress on standard error, figures out."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from embedding_store.model import ModelSettings
from ingest.settings import IngestSettings
from trainer.backtest.errors import BacktestError, DataUnusable
from trainer.backtest.plot import plot
from trainer.backtest.replayed import replay
from trainer.backtest.report import report
from trainer.backtest.stream import read_stream
from trainer.settings import TrainerSettings
from trainer.warm_up import warm_up

__all__ = ["BacktestError", "Columns", "run"]


@dataclass(frozen=True, slots=True)
class Columns:
    """Where a file has what; see `trainer.backtest.stream.read_stream`."""

    user: str
    item: str
    time: str | None
    label: str | None
    positive_if: str
    time_unit: str
    delimiter: str | None
    header: bool | None


def run(
    data: Path,
    columns: Columns,
    model: ModelSettings,
    trainer: TrainerSettings,
    ingest: IngestSettings,
    *,
    warmup: float,
    first_only: bool,
    negatives: bool,
    frozen: bool,
    picture: Path | None,
    as_json: bool,
) -> None:
    """Read, replay, report. Raises BacktestError, SpecError."""
    if trainer.loss == "bce" and not negatives:
        raise DataUnusable(
            "loss = 'bce' learns to tell negatives from positives, and they are left out: add --negatives"
        )
    people = Console(stderr=True)
    stream = read_stream(data, **asdict(columns)).ordered(first_only=first_only, negatives=negatives)
    # what has to be compiled is compiled before the clock starts
    warm_up(model, trainer, ingest)
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        TimeRemainingColumn(), console=people,
    )  # fmt: skip
    with bar:
        task = bar.add_task("tested, then learned", total=len(stream))
        done = replay(
            stream, model, trainer, ingest, warmup=warmup, frozen=frozen,
            progress=lambda n: bar.update(task, completed=n),
        )  # fmt: skip
    document = report(done)
    if picture is not None:
        plot(document["over_time"], picture)
    for line in _lines(document):
        people.print(line, highlight=False)
    if as_json:
        print(json.dumps(document))


def _lines(document: dict[str, Any]) -> list[str]:
    def figures(name: str, values: dict[str, Any]) -> str:
        return f"  {name:<12}" + "  ".join(f"{key} {_shown(values[key])}" for key in ("hr10", "hr10_late", "ndcg10"))

    lines = [f"{document['tests']:,} tests of {document['events']:,} events", figures("model", document)]
    lines.append(figures("popularity", document["popularity"]))
    if "frozen" in document:
        lines.append(figures("frozen copy", document["frozen"]) + f"  late z {document['frozen']['late_z']}")
    if "labels" in document:
        found = document["labels"]
        named = (("log loss", "log_loss"), ("AUC", "auc"), ("predicted over observed", "calibration"))
        lines.append("  labels      " + "  ".join(f"{name} {_shown(found[key])}" for name, key in named))
    lines.append(f"{document['events_per_s']:,} events/s, {document['events_per_cpu_s']:,} per second of one core")
    return lines


def _shown(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"
