"""Lazy regularization: what rows have missed since their last update, in closed form. Pure.

**The grid.** Step τ lasts from clock τ·E to (τ + 1)·E, E = `step_events`. Its decay counts at its end: a state at clock
c holds the decays of the steps 0 … c // E − 1, no more and no fewer. A call that ends at clock c first decays, then
learns its gradients with the rate of step c // E. So what is stored and read equals this eager store: *as soon as the
clock has passed the end of a step, decay every row of the table with that step's rate; then apply the gradients of the
calls that end from there on.* Clocks count events, so the grid knows nothing of batches, flushes and workers.

**The row.** A row keeps the clock s of its last update. At clock c it has missed the steps s // E … c // E − 1. With
ΔL = Σ log1p(−η_τ·λ2) and ΔH = Σ η_τ over them (`schedules.Sums`):

- l2: w·exp(ΔL) (Carpenter 2008; decoupled as Loshchilov & Hutter 2017).
- l1: sgn(w)·max(0, |w| − λ1·ΔH) (Langford, Li, Zhang 2009; Duchi & Singer 2009).
- elastic net: sgn(w)·max(0, |w|·exp(ΔL) − λ1·(1 − exp(ΔL))/λ2). Lipton & Elkan 2015 write the threshold as
  λ1·P_c·(B_c − B_s) with P = Π(1 − η_τ·λ2) and B = Σ η_τ/P_τ, and rebase B before P underflows. Since
  λ2·η_τ = 1 − (1 − η_τ·λ2), that sum telescopes to (1 − P_c/P_s)/λ2 under any schedule: no B, nothing to rebase.

One clip at the end equals a clip at each step because every factor is in (0, 1]. The forms compose: decayed to c and
then to d is decayed to d. A row that is new, or read and not there, has missed nothing. A row that is newer than the
clock it is read at (the clock was read first) has missed nothing either.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from embedding_store.contract import F32, I64, U64, Bool
from embedding_store.flush_parts import by_shard
from embedding_store.records import Block
from embedding_store.regularization import L1, L2, ElasticNet, NoRegularization, Regularization
from embedding_store.schedules import Schedule, Sums
from embedding_store.spec import TableSpec
from native.decay import shrink
from native.elementary import exp_each, expm1_each

F64 = npt.NDArray[np.float64]


def rate_at(spec: TableSpec, clock: int) -> float:
    """η of the step that `clock` lies in; 1 for an optimizer without a rate."""
    if spec.optimizer.kind == "add":
        return 1.0
    return spec.optimizer.learning_rate * _factor(spec.schedule, clock // spec.step_events)


def decays(spec: TableSpec) -> bool:
    """Whether rows of the table change by the clock alone."""
    return not isinstance(spec.regularization, NoRegularization)


def missed(spec: TableSpec, since: I64, clock: I64 | int, found: Bool) -> tuple[F64, F64] | None:
    """(factors (n,), thresholds (n,)) of what rows (n,) of clocks `since` have missed at `clock`; None: nothing.

    clock: one for all, or (n,) of few distinct values. Rows not found have missed nothing.
    """
    if not decays(spec) or not len(since):
        return None
    starts = since // spec.step_events
    stops = np.where(found, np.broadcast_to(np.asarray(clock, np.int64), since.shape) // spec.step_events, 0)
    late = stops > starts
    if not late.any():
        return None
    factors, thresholds = np.ones(len(since)), np.zeros(len(since))
    for stop in np.unique(stops[late]).tolist():
        rows = np.flatnonzero(late & (stops == stop))
        factors[rows], thresholds[rows] = _closed_form(spec, starts[rows], stop)
    return factors, thresholds


def decay(spec: TableSpec, vectors: F32, since: I64, clock: I64 | int, found: Bool) -> None:
    """Bring vectors (n, dim), as of clocks `since` (n,), to `clock`, in place."""
    both = missed(spec, since, clock, found)
    if both is not None:
        shrink(vectors, *both, vectors)


def decay_read(spec: TableSpec, block: Block, keys: U64, clocks: Sequence[int]) -> None:
    """Bring the vectors of rows read to the clocks of their shards (shards,), in place; `block` answers `keys`."""
    if decays(spec):
        decay(spec, block.vectors, block.headers["clock"], clocks_of(keys, clocks), block.found)


def clocks_of(keys: U64, clocks: Sequence[int]) -> I64:
    """(n,) the clock of each key's shard."""
    order, starts = by_shard(keys, len(clocks))
    out = np.empty(len(keys), np.int64)
    out[order] = np.repeat(np.array(clocks, np.int64), np.diff(starts))
    return out


def _closed_form(spec: TableSpec, starts: I64, stop: int) -> tuple[F64, F64]:
    r = spec.regularization
    sums = _sums_of(spec)
    if isinstance(r, L1):
        return np.ones(len(starts)), r.l1 * sums.total_rate(starts, stop)
    log_decay = sums.log_decay(starts, stop)
    factors, thresholds = np.empty_like(log_decay), np.zeros_like(log_decay)
    exp_each(log_decay, factors)
    if isinstance(r, ElasticNet):
        expm1_each(log_decay, thresholds)
        thresholds = -thresholds * (r.l1 / r.l2)
    return factors, thresholds


def _sums_of(spec: TableSpec) -> Sums:
    if spec.optimizer.kind == "add":
        raise AssertionError("'add' has no rate to decay with; the declaration was not validated")
    return _sums(spec.optimizer.learning_rate, spec.schedule, spec.regularization)


@lru_cache(maxsize=64)
def _sums(learning_rate: float, schedule: Schedule, regularization: Regularization) -> Sums:
    return Sums(learning_rate, schedule, regularization.l2 if isinstance(regularization, L2 | ElasticNet) else 0.0)


@lru_cache(maxsize=64)
def _factor(schedule: Schedule, step: int) -> float:
    return float(schedule.factors(np.array([step], np.int64))[0])
