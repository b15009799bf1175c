"""Learning under guard, and what becomes of what may not be learned."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import numpy as np

from embedding_store.contract import Range, Source
from embedding_store.errors import SnapshotError
from embedding_store.model import ModelSettings
from ingest.columns import MAX_LINES, MicroBatch
from trainer.alarm import Alarm
from trainer.dense import DenseWorker
from trainer.examples import Examples
from trainer.foretold import F64, Foretold, foretell, foretell_labels, predicted
from trainer.guard import Guard, Verdict
from trainer.learner import Learner, Step
from trainer.settings import TrainerSettings

log = logging.getLogger(__name__)

Rewind = Callable[[Sequence[Range]], str]
"""Restore the store to a snapshot without these records; returns what was done. Raises SnapshotError."""


class GuardedLearner:
    """A learner that leaves no trace of what the guard refuses, neither in its dense parameters nor anywhere else."""

    def __init__(self, learner: Learner, dense: DenseWorker, model: ModelSettings, settings: TrainerSettings) -> None:
        self._learner, self._dense, self._model = learner, dense, model
        self._labels = settings.loss == "bce"
        self.guard = None
        if settings.guard != "off":
            self.guard = Guard(
                settings.guard_deviations, settings.guard_growth, settings.guard_after, labels=self._labels
            )

    def learn(self, examples: Examples, clock: int, *, judge: bool) -> tuple[Step, Verdict | None]:
        """The step, and why it is quarantined if it is: then there is nothing to be applied in it.

        judge: False while what is read was partly applied before; then only what is not finite is refused.
        """
        guard = self.guard if judge else None
        if guard is not None:
            verdict = guard.judged(self._foretold(examples, clock))
            if verdict is not None:
                return nothing(self._model.dim), verdict
        mark, intercept = self._dense.mark(), self._learner.intercept
        step = self._learner.learn(examples, clock)
        verdict = None if step.finite else NOT_FINITE
        if guard is not None and verdict is None:
            verdict = guard.judged_step(step, self._model.dim)
        if verdict is None:
            return step, None
        self._dense.undo(mark)
        self._learner.intercept = intercept
        return nothing(self._model.dim), verdict

    def predicted(self, examples: Examples, clock: int) -> F64 | None:
        """(fresh,) chance of each event to be a positive, before it is learned; None unless labels are learned."""
        intercept = self._learner.intercept
        if intercept is None:
            return None
        rows = np.arange(examples.fresh)
        return predicted(examples, self._model, self._dense.values, clock, intercept, rows)

    def _foretold(self, examples: Examples, clock: int) -> Foretold:
        if self._labels:
            return foretell_labels(examples, self._model, self._dense.values, clock, self._learner.intercept)
        return foretell(examples, self._model, self._dense.values, clock)

    def forget(self) -> None:
        """The model is another than it was: what was usual is no longer known."""
        if self.guard is not None:
            self.guard.clear()


NOT_FINITE = Verdict("not_finite", "loss or gradients are not finite, or beyond what the store takes")


def nothing(dim: int) -> Step:
    """A step that was not made."""
    none = np.zeros(0, np.uint64)
    rows = np.zeros((0, dim), np.float32)
    return Step(none, rows, none, rows, 0.0, 0, finite=False)


class Policy:
    """`skip`, `pause`, `rollback`: what follows a quarantine."""

    def __init__(self, policy: str, alarm: Alarm, rewind: Rewind | None) -> None:
        """rewind: None where there are no snapshots to go back to."""
        self._policy, self._alarm, self._rewind = policy, alarm, rewind
        self._rewound_at = -1

    def rolled_back(self, batch: MicroBatch, verdict: Verdict, clock: int) -> bool:
        """Whether the store was put back to a snapshot, to be learned again without the batch's events.

        Not if that did not help: no further than events `clock` was it done the last time. Raises StoreUnavailable.
        """
        if self._policy != "rollback":
            return False
        if clock <= self._rewound_at:
            log.error("not rolled back again: the guard refuses the same stretch of the stream once more")
            return False
        if self._rewind is None:
            log.error("not rolled back: no snapshots are configured, set [trainer] guard_snapshots")
            return False
        try:
            done = self._rewind(left_out(batch))
        except SnapshotError as error:
            log.error("not rolled back: %s", error)  # noqa: TRY400  the error is the message
            return False
        self._rewound_at = clock
        self._alarm.rings(batch.ranges, verdict, done, paused=False)
        return True

    def pauses(self, batch: MicroBatch, verdict: Verdict) -> bool:
        """Ring; whether nothing more is to be read until a person has looked at it."""
        if self._policy in ("skip", "off"):
            self._alarm.rings(batch.ranges, verdict, "their events count and are not learned from", paused=False)
            return False
        exclude = " ".join(
            f"--exclude {source.topic_id}:{source.partition}:{start}-{stop - 1}"
            for source, start, stop in left_out(batch)
        )
        then = (
            "their events count and are not learned from; paused until the trainer is started again or the store is "
            f"restored: `towline snapshot list`, `towline snapshot restore NAME {exclude}`"
        )
        self._alarm.rings(batch.ranges, verdict, then, paused=True)
        return True

    def over(self) -> None:
        """The store was put right."""
        self._alarm.over()


def left_out(batch: MicroBatch) -> list[Range]:
    """The batch's records but for tombstones and what is behind them: who is to be forgotten is forgotten."""
    ranges = []
    for partition, (start, stop) in sorted(batch.ranges.items()):
        first = stop
        for forget in (batch.forget_users, batch.forget_items):
            own = forget.place[forget.partition == partition.number] // MAX_LINES
            first = min(first, int(own.min()) if len(own) else stop)
        if first > start:
            ranges.append(Range(Source(*partition), start, first))
    return ranges
