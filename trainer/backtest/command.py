"""The shell of a back-test: a file or a range of a topic in, progress on standard error, figures out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from embedding_store.contract import EmbeddingStore
from embedding_store.errors import StoreError
from embedding_store.model import ModelSettings
from embedding_store.open import open_store
from embedding_store.redis_store.registered import RegisteredStore
from embedding_store.settings import RedisSettings
from ingest.settings import IngestSettings, KafkaSettings
from trainer.backtest.errors import BacktestError, DataUnusable, StoreUnusable
from trainer.backtest.plot import plot
from trainer.backtest.replayed import replay
from trainer.backtest.report import report
from trainer.backtest.stream import Replayable, read_stream
from trainer.backtest.topic import PREFIX, read_topic
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
    data: str,
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
    kafka: KafkaSettings | None = None,
    redis: RedisSettings | None = None,
) -> None:
    """Read, replay, report. Raises BacktestError, SpecError.

    data: a file, or `topic:NAME[@FROM][..TO]`, whose events have labels of their own: the columns are a file's. kafka:
    the broker of a topic. redis: an empty store to learn in, which is left empty; None: in memory.
    """
    if trainer.loss == "bce" and not negatives:
        raise DataUnusable(
            "loss = 'bce' learns to tell negatives from positives, and they are left out: add --negatives"
        )
    people = Console(stderr=True)
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        TimeRemainingColumn(), console=people,
    )  # fmt: skip
    schema = model.feature_schema
    with bar, _store(redis) as store:
        extra: dict[str, Any] = {}
        if data.startswith(PREFIX):
            if kafka is None:
                raise DataUnusable(f"{data} is read from a broker, and none is configured: set [kafka]")
            reading = bar.add_task("records read", total=None)
            read = read_topic(
                data, kafka, ingest, schema, lambda n, total: bar.update(reading, completed=n, total=total)
            )
            extra = {"unusable_events": read.dead_letters, "forgotten_events": read.forgotten}
            stream: Replayable = read.ordered(first_only=first_only, negatives=negatives)
        else:
            file = read_stream(Path(data), **asdict(columns), features=schema)
            stream = file.ordered(first_only=first_only, negatives=negatives)
        # what has to be compiled is compiled before the clock starts
        warm_up(model, trainer, ingest)
        task = bar.add_task("tested, then learned", total=len(stream))
        done = replay(
            stream, model, trainer, ingest, warmup=warmup, frozen=frozen, store=store,
            progress=lambda n: bar.update(task, completed=n),
        )  # fmt: skip
    document = report(done) | extra
    if picture is not None:
        plot(document["over_time"], picture)
    for line in _lines(document):
        people.print(line, highlight=False)
    if as_json:
        print(json.dumps(document))


@contextmanager
def _store(redis: RedisSettings | None) -> Iterator[EmbeddingStore | None]:
    """None for one in memory; else an empty one, which is empty again afterwards. Raises StoreUnusable."""
    if redis is None:
        yield None
        return
    try:
        store = open_store(redis)
    except StoreError as error:
        raise StoreUnusable(str(error)) from error
    assert isinstance(store, RegisteredStore)  # noqa: S101  both backends are
    try:
        if store.published_model() is not None or store.tables():
            raise StoreUnusable(
                f"the store holds tables ({', '.join(store.tables()) or 'and a model'}), which a back-test would teach "
                "and then remove: name a server that holds none"
            )
        try:
            yield store
        finally:
            store.clear()
    except StoreError as error:
        raise StoreUnusable(str(error)) from error
    finally:
        store.close()


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
