"""Running a stream through a worker, on a store in memory if not on another, and what came of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from embedding_store.contract import EmbeddingStore
from embedding_store.memory import MemoryStore
from embedding_store.model import ModelSettings
from ingest.columns import MAX_LINES, Partition
from ingest.settings import IngestSettings
from trainer.backtest.errors import DataUnusable
from trainer.backtest.stream import Replayable
from trainer.label_scores import LabelTests
from trainer.metrics import Metrics
from trainer.prequential import Tests
from trainer.settings import TrainerSettings
from trainer.worker import Worker

F64 = npt.NDArray[np.float64]

_PARTITION = Partition("backtest", 0)


@dataclass(frozen=True, slots=True)
class Replayed:
    """What every test was, and what the run cost."""

    events: int
    warmup: int  # events at the beginning whose tests are left out
    place: npt.NDArray[np.int64]  # (m,) number of each test's event in the stream
    ranks: F64  # (m,) inf for a miss
    popular: F64  # (m,) by decayed popularity alone
    frozen: F64 | None  # (m,) by the model as it was after the warm-up
    warm: npt.NDArray[np.bool_]  # (m,)
    wall_s: float
    cpu_s: float  # of all threads of the process
    dead_letters: int
    quarantined: int  # micro-batches
    labels: LabelTests | None  # of label events, where labels are learned


@dataclass(slots=True)
class _Seen:
    parts: list[Tests] = field(default_factory=list)
    labels: list[LabelTests] = field(default_factory=list)


def replay(
    stream: Replayable,
    model: ModelSettings,
    trainer: TrainerSettings,
    ingest: IngestSettings,
    *,
    warmup: float = 0.2,
    frozen: bool = True,
    progress: Callable[[int], None] | None = None,
    store: EmbeddingStore | None = None,
) -> Replayed:
    """Test, then learn, every event of the stream, by a trainer's own worker. Micro-batches are cut by count alone, so
    that a run can be repeated.

    warmup: share of the events whose tests are left out. frozen: measure a copy of the model of that moment too.
    progress: is told of events delivered. store: an empty one; None: in memory. Raises DataUnusable.
    """
    if not len(stream):
        raise DataUnusable("no event is left to be replayed: check what counts as positive")
    first = int(warmup * len(stream))
    settings = trainer.model_copy(
        update={
            "evaluate_share": 1.0,
            "evaluate_freeze_after": max(1, first) if frozen else 0,
            "metrics_port": 0,
            "guard": "off" if trainer.guard == "off" else "skip",  # nobody is there to be waited for
            "alarm_file": "",
        }
    )
    source = stream.source(_PARTITION, ingest, model.feature_schema)
    seen, metrics = _Seen(), Metrics()
    where = MemoryStore() if store is None else store
    worker = Worker(
        where, source, model, settings, metrics, observe=seen.parts.append, observe_labels=seen.labels.append
    )
    started, cpu = time.perf_counter(), time.process_time()

    def over() -> bool:
        if progress is not None:
            progress(len(stream) - source.lag())
        return source.exhausted

    worker.run(over)
    wall_s, cpu_s = time.perf_counter() - started, time.process_time() - cpu
    quarantined = metrics.registry.get_sample_value("towline_trainer_quarantined_total") or 0
    place = np.concatenate([np.zeros(0, np.int64), *(t.place for t in seen.parts)]) // MAX_LINES
    kept = place >= first
    columns = [
        np.concatenate([np.zeros(0), *(getattr(t, name) for t in seen.parts)])[kept] for name in ("ranks", "popular")
    ]
    return Replayed(
        events=len(stream),
        warmup=first,
        place=place[kept],
        ranks=columns[0],
        popular=columns[1],
        frozen=_frozen(seen.parts, kept) if frozen else None,
        warm=np.concatenate([np.zeros(0, np.bool_), *(t.warm for t in seen.parts)])[kept],
        wall_s=wall_s,
        cpu_s=cpu_s,
        dead_letters=len(source.dead),
        quarantined=int(quarantined),
        labels=_labels(seen.labels, first) if trainer.loss == "bce" else None,
    )


def _labels(parts: list[LabelTests], first: int) -> LabelTests:
    joined = [np.concatenate([np.zeros(0), *(getattr(t, n) for t in parts)]) for n in ("place", "predicted", "label")]
    place = joined[0].astype(np.int64) // MAX_LINES
    kept = place >= first
    return LabelTests(place[kept], joined[1][kept], joined[2][kept])


def _frozen(parts: list[Tests], kept: npt.NDArray[np.bool_]) -> F64:
    """The micro-batch in which the warm-up ends has no frozen copy yet: there the live model is what is frozen."""
    return np.concatenate([np.zeros(0), *(t.ranks if t.frozen is None else t.frozen for t in parts)])[kept]
