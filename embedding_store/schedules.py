"""Learning-rate schedules, and their sums over steps: what lazy decay is made of.

One step is `step_events` events of a shard's clock: at clock c the step is τ = c // step_events. The rate of step τ is
η_τ = learning_rate · factor(τ), in float64. Every factor lies in [0, 1] and reaches 1, so that the largest rate of a
whole schedule is the optimizer's learning_rate.

With `warmup_steps` = W > 0 the factor rises linearly, (τ + 1)/W for τ < W (Goyal et al. 2017, arXiv 1706.02677, §2.2);
the schedule proper then starts at u = τ − W = 0.

All of it has the same bits in every backend and on every replica: `native/redis_module/core/schedule.c` does these
operations in this order. Hence sums from the first step on, one after the other, and `native.elementary` in place of
NumPy's functions.
"""

from __future__ import annotations

import threading
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from embedding_store.frozen import Frozen
from native.elementary import cos_pi_each, log1p, log1p_each

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

MAX_STEPS = 1_000_000
"""Of a warm-up, and of a cosine: 10⁹ events at the default step. Bounds the tables of sums below to 32 MB."""

EXACT_STEPS = 1 << 20
"""Steps of an endless schedule that are summed one by one; beyond them sums are integrals, see `_inverse_time_tail`."""


class _Schedule(Frozen):
    warmup_steps: int = Field(0, ge=0, le=MAX_STEPS, description="steps over which the rate rises from near 0")

    @property
    def varied_steps(self) -> int:
        """Steps from 0 on whose rates have to be summed one by one."""
        return self.warmup_steps

    def factors(self, steps: I64) -> F64:
        """(n,) η_τ / learning_rate of steps (n,), each 0 or more."""
        out = self._after_warmup(np.maximum(steps - self.warmup_steps, 0).astype(np.float64))
        if self.warmup_steps:
            out = np.where(steps < self.warmup_steps, (steps + 1.0) / self.warmup_steps, out)
        return out

    def _after_warmup(self, u: F64) -> F64:
        raise NotImplementedError


class Constant(_Schedule):
    """Factor 1."""

    kind: Literal["constant"] = "constant"

    def _after_warmup(self, u: F64) -> F64:
        return np.ones_like(u)


class InverseTime(_Schedule):
    """Factor 1/(1 + decay·u): the classic Robbins–Monro rate (Bottou 2012, Stochastic Gradient Descent Tricks)."""

    kind: Literal["inverse_time"] = "inverse_time"
    decay: float = Field(gt=0, le=1e6, allow_inf_nan=False, description="per step; the rate has halved after 1/decay")

    @property
    def varied_steps(self) -> int:
        """As above; what follows is summed in closed form."""
        return self.warmup_steps + EXACT_STEPS

    def _after_warmup(self, u: F64) -> F64:
        return np.reciprocal(1.0 + self.decay * u)


class Cosine(_Schedule):
    """Factor floor + (1 − floor)·(1 + cos(π·min(u, steps)/steps))/2 (Loshchilov & Hutter 2016, arXiv 1608.03983)."""

    kind: Literal["cosine"] = "cosine"
    steps: int = Field(ge=1, le=MAX_STEPS, description="from the full rate down to the floor, where it stays")
    floor: float = Field(0.01, ge=0, le=1, description="last rate as a share of the first; 0 stops learning for good")

    @property
    def varied_steps(self) -> int:
        """As above; afterwards the rate is that of the floor."""
        return self.warmup_steps + self.steps

    def _after_warmup(self, u: F64) -> F64:
        wave = np.minimum(u, self.steps) / self.steps
        cos_pi_each(wave, wave)
        wave = 0.5 * (1.0 + wave)
        return np.where(u >= self.steps, self.floor, self.floor + (1.0 - self.floor) * wave)


Schedule = Annotated[Constant | InverseTime | Cosine, Field(discriminator="kind")]


class Sums:
    """L(n) = Σ_{τ<n} log1p(−η_τ·λ2) and H(n) = Σ_{τ<n} η_τ of one schedule, in float64.

    Kept as prefix sums that grow with the clock, in blocks of fixed place: the same bits whatever was asked for before.
    Each step is evaluated once, so a query is O(1) amortized; at most `varied_steps` are kept. Products Π(1 − η_τ·λ2)
    are never formed: they underflow. Thread-safe.
    """

    BLOCK = 4096

    def __init__(self, learning_rate: float, schedule: Constant | InverseTime | Cosine, l2: float) -> None:
        self._rate, self._schedule, self._l2 = learning_rate, schedule, l2
        self._head = schedule.varied_steps
        self._lock = threading.Lock()
        self._log_decay = self._total_rate = np.zeros(1)  # prefix sums: element n covers steps 0 … n − 1

    def rate(self, step: int) -> float:
        """η of a step."""
        return self._rate * float(self._schedule.factors(np.array([step], np.int64))[0])

    def log_decay(self, starts: I64, stop: int) -> F64:
        """(n,) L(stop) − L(start) for starts (n,) ≤ stop: the missed steps start … stop − 1."""
        return self._between(starts, stop, log=True)

    def total_rate(self, starts: I64, stop: int) -> F64:
        """(n,) H(stop) − H(start), likewise."""
        return self._between(starts, stop, log=False)

    def _between(self, starts: I64, stop: int, *, log: bool) -> F64:
        head = min(stop, self._head)
        sums = self._prefix(head, log=log)
        total: F64 = sums[head] - sums[np.minimum(starts, head)]
        if stop > self._head:
            total += self._tail(np.maximum(starts, head), stop, log=log)
        return total

    def _prefix(self, steps: int, *, log: bool) -> F64:
        if len(self._total_rate) <= steps:
            with self._lock:
                self._grow(steps)
        return self._log_decay if log else self._total_rate

    def _grow(self, steps: int) -> None:
        have = len(self._total_rate) - 1
        stop = min(-(-max(steps, 2 * have) // self.BLOCK) * self.BLOCK, self._head)
        if stop <= have:
            return
        rates = [np.zeros(0)]
        decays = [np.zeros(0)]
        for lo in range(have, stop, self.BLOCK):
            rate = self._rate * self._schedule.factors(np.arange(lo, min(lo + self.BLOCK, stop), dtype=np.int64))
            rates.append(rate)
            decays.append(_log1p(-rate * self._l2))
        self._log_decay = _extended(self._log_decay, decays)
        self._total_rate = _extended(self._total_rate, rates)  # last: its length says that both are there

    def _tail(self, starts: I64, stop: int, *, log: bool) -> F64:
        schedule = self._schedule
        if isinstance(schedule, InverseTime):
            return _inverse_time_tail(self._rate, schedule, self._l2 if log else None, starts, stop)
        rate = self.rate(self._head)
        each = log1p(-rate * self._l2) if log else rate
        total: F64 = np.multiply(stop - starts, each)
        return total


def _extended(sums: F64, parts: list[F64]) -> F64:
    # an accumulation in order, started from the last sum: as if all had been added in one go
    return np.concatenate([sums[:-1], np.add.accumulate(np.concatenate([sums[-1:], *parts]))])


def _log1p(x: F64) -> F64:
    out = np.empty_like(x)
    log1p_each(x, out)
    return out


def _inverse_time_tail(rate: float, schedule: InverseTime, l2: float | None, starts: I64, stop: int) -> F64:
    """Σ_{start ≤ τ < stop} of η_τ, or of log1p(−η_τ·l2), by Euler and Maclaurin: ∫ g + (g(start) − g(stop))/2.

    What is left out is below |g′(start)|/12 < η·λ/(12·u²·decay) with u ≥ 2²⁰. With x = 1 + decay·u and a = rate·l2,
    ∫ log(1 − a/x) dx = (x − a)·log1p(−a/x) − a·log x.
    """
    k, w = schedule.decay, schedule.warmup_steps
    x: F64 = 1.0 + k * (starts - w).astype(np.float64)
    y = 1.0 + k * float(stop - w)
    between = _log1p((y - x) / x)  # log(y/x)
    if l2 is None:
        return np.asarray(rate * (between / k + 0.5 * (1.0 / x - 1.0 / y)))
    a = rate * l2
    at_x, at_y = _log1p(-a / x), log1p(-a / y)
    total = ((y - a) * at_y - (x - a) * at_x - a * between) / k + 0.5 * (at_x - at_y)
    return np.where(total > 0.0, 0.0, total)  # where steps are so many that one drowns in rounding
