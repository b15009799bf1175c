"""Whether a micro-batch may be learned: what is far from anything before it is quarantined.

Before a micro-batch is learned some of its events are foretold (`trainer.foretold`), and their mean loss x is compared
with the running one. With n events foretold, μ the running mean, σ² the running variance of one event's loss and τ² of
micro-batches' means beyond chance,

    z = (x − μ) / √(σ²/n + τ²)

Above `guard_deviations` the metric diverges; below minus that, calibration has jumped: the model is suddenly sure of
what it was never sure of. Of label events, calibration is (mean predicted − observed) and compared likewise, on both
sides. So is the share of the commonest item. After learning, the longest change of a row is compared with the running
one.

What is quarantined moves μ, σ and τ a tenth as much and clipped: a lasting change of the stream is followed in the end,
a flood of nonsense is not learned while it lasts. Nothing is judged before `guard_after` events, nor in a replay of
what some shards have: a range is quarantined for all shards or for none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from embedding_store.contract import F32, U64
from native.bounds import longest
from trainer.foretold import Foretold
from trainer.learner import Step

Kind = Literal["not_finite", "loss", "calibration", "one_item", "growth"]

TOGETHER = 64
"""Events that are judged at least; smaller micro-batches are judged together with those before them."""

_FLOOR = 0.1
"""Of τ, in nats: what a micro-batch may always be off."""
_LABEL_FLOOR = 0.03
_CLIP = 3.0
_SLOW = 0.1


class Verdict(NamedTuple):
    """Why a micro-batch is quarantined."""

    kind: Kind
    reason: str


@dataclass(slots=True)
class _Batch:
    """What was measured of one micro-batch."""

    n: int
    mean: float
    variance: float
    refused: bool = False


class Band:
    """A running mean and what lies within reach of it."""

    def __init__(self, after: int, floor: float = _FLOOR) -> None:
        """after: events before anything is judged; the running figures are about a quarter as many."""
        self._after, self._window, self._floor = after, max(1, after // 4), floor
        self._tail: list[_Batch] = []  # judged together, and not in the figures yet
        self.events = 0
        self.mean = self._variance = self._between = 0.0

    def deviation(self, mean: float, variance: float, n: int) -> float:
        """z of n ≥ 1 events, taken together with what came just before if they are few; 0 while those are too few."""
        self._tail.append(_Batch(n, mean, variance))
        while sum(batch.n for batch in self._tail[1:]) >= TOGETHER:
            self._follow(self._tail.pop(0))
        together = sum(batch.n for batch in self._tail)
        if together < TOGETHER or self.events < self._after:
            return 0.0
        x = sum(batch.n * batch.mean for batch in self._tail) / together
        return (x - self.mean) / self._reach(together)

    def refuse(self) -> None:
        """What was judged last was too far off."""
        for batch in self._tail:
            batch.refused = True

    def _reach(self, n: int) -> float:
        return math.sqrt(self._variance / n + self._between + self._floor**2)

    def _follow(self, batch: _Batch) -> None:
        rate = batch.n / (min(self.events, self._window) + batch.n)
        off, variance = batch.mean - self.mean, batch.variance
        if batch.refused:
            rate *= _SLOW
            most = _CLIP * self._reach(batch.n)
            off, variance = min(most, max(-most, off)), min(variance, self._variance)
        if self.events:
            self._between += rate * (max(0.0, off * off - self._variance / batch.n) - self._between)
        self.mean += rate * off
        self._variance += rate * (variance + (1.0 - rate) * off * off - self._variance)
        self.events += batch.n


@dataclass(slots=True)
class _Growth:
    """Of the longest change of a row, in logarithms."""

    mean: float = 0.0
    batches: int = 0

    def follow(self, value: float, rate: float) -> None:
        self.mean += max(rate, 1.0 / (self.batches + 1)) * (value - self.mean)
        self.batches += 1


class Guard:
    """Judges micro-batches in stream order. Its memory is a worker's own and begins anew with it."""

    def __init__(self, deviations: float, growth: float, after: int, *, labels: bool = False) -> None:
        """deviations: |z| that is too far. growth: times the running longest change that is too long. after: events.

        labels: the loss is that of labels, and a smaller one.
        """
        self._deviations, self._growth, self._after = deviations, growth, after
        self._floor = _LABEL_FLOOR if labels else _FLOOR
        self.clear()

    def clear(self) -> None:
        """Forget what was usual: the model is another now."""
        self._loss, self._calibration = Band(self._after, self._floor), Band(self._after, floor=0.02)
        self._share, self._targets = Band(self._after, floor=0.03), np.zeros(0, np.uint64)
        self._longest = _Growth()

    def judged(self, told: Foretold) -> Verdict | None:
        """On what was foretold before learning; None: learn it. Takes it in."""
        if not told.events:
            return None
        if not (math.isfinite(told.loss) and math.isfinite(told.variance) and math.isfinite(told.calibration)):
            return Verdict("not_finite", f"the loss of {told.events} events foretold is {told.loss}")
        verdict = None
        share = self._commonest(told.targets)
        z = self._loss.deviation(told.loss, told.variance, told.events)
        crowded = self._share.deviation(share, 0.0, told.events)
        off = 0.0
        if told.labels:
            off = self._calibration.deviation(told.calibration, told.calibration_variance, told.events)
        if crowded > self._deviations:
            verdict = self._far("one_item", "share of the commonest item", share, self._share, crowded)
        elif z > self._deviations:
            verdict = self._far("loss", "loss", told.loss, self._loss, z)
        elif z < -self._deviations and not told.labels:
            verdict = self._far("calibration", "the model is sure as it never was: loss", told.loss, self._loss, z)
        elif abs(off) > self._deviations:
            verdict = self._far("calibration", "predicted minus observed", told.calibration, self._calibration, off)
        if verdict is not None:
            for band in (self._loss, self._share, self._calibration):
                band.refuse()
        return verdict

    def judged_step(self, step: Step, dim: int) -> Verdict | None:
        """On what was learned, all finite; None: apply it. Takes it in. dim: columns of a row that are its vector."""
        longest = max(_longest(step.of(table)[1], dim) for table in ("item", "user", "feature"))
        if longest <= 0.0:
            return None
        now, usual = math.log(longest), self._longest.mean
        if self._loss.events >= self._after and now > usual + math.log(self._growth):
            self._longest.follow(usual + math.log(self._growth), _SLOW * TOGETHER / self._after)
            return Verdict(
                "growth", f"a row changes by {longest:.3g}, where {math.exp(usual):.3g} was the most as a rule"
            )
        self._longest.follow(now, TOGETHER / self._after)
        return None

    def _commonest(self, targets: U64) -> float:
        """Share of the commonest item among the micro-batch's, together with what came before if they are few."""
        self._targets = np.concatenate([self._targets, targets])[-max(TOGETHER, len(targets)) :]
        return float(np.unique(self._targets, return_counts=True)[1].max()) / len(self._targets)

    @staticmethod
    def _far(kind: Kind, what: str, value: float, band: Band, z: float) -> Verdict:
        return Verdict(kind, f"{what} is {value:.3f}, where {band.mean:.3f} is usual, z = {z:.1f}")


def _longest(changes: F32, dim: int) -> float:
    """L2 norm of the longest of (u, dim) changes; behind them sums of squares, which are those of gradients."""
    if not len(changes):
        return 0.0
    squares = longest(changes, dim)
    if changes.shape[1] > dim:
        squares = max(squares, float(changes[:, dim:].max()))
    return math.sqrt(squares)
