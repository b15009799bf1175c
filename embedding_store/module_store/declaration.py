"""A table as the module is told it: names and values by turns, all names of native/redis_module/core/spec.h. Pure."""

from __future__ import annotations

from embedding_store import eviction
from embedding_store.optimizers import Adagrad, Adam, Add, RowwiseAdagrad, initial_state
from embedding_store.regularization import L1, L2, ElasticNet
from embedding_store.schedules import Cosine, InverseTime
from embedding_store.spec import TableSpec


def declaration(spec: TableSpec, document: bytes) -> list[bytes | str | int]:
    """Name, value, … of one of the table's shards. document: the declaration as it is registered, opaque to the module.

    Numbers of the table as a whole are cut into shards as `embedding_store.eviction` does. What a kind of optimizer,
    schedule or regularization does not have is 0. Floats are text that reads back to the same number.
    """
    pairs: dict[str, bytes | str | int | float] = {
        "declaration": document,
        "kind": spec.kind,
        "dim": spec.dim,
        "length": spec.length,
        "seed": spec.seed,
        "initial_std": spec.initial_std,
        "gap_rate": spec.gap_rate,
        "popularity_half_life": spec.popularity_half_life,
        "step_events": spec.step_events,
        "clip_norm": spec.clip_norm,
        **_optimizer(spec),
        **_schedule(spec),
        **_regularization(spec),
        "admit_after": spec.admit_after,
        "max_stubs": spec.max_stubs // spec.shards,
        "max_rows": (spec.max_rows or 0) // spec.shards,
        "ttl_ms": max(1, round(1000 * spec.ttl_s)) if spec.ttl_s else 0,  # 0 is never
        "remember_events": spec.remember_events,
        "evict_batch": eviction.BATCH,
        "max_evicted": eviction.MAX_EVICTED,
        "max_forgotten": eviction.MAX_FORGOTTEN,
    }
    return [part for name, value in pairs.items() for part in (name, _text(value))]


def _optimizer(spec: TableSpec) -> dict[str, str | float]:
    o = spec.optimizer
    return {
        "optimizer": o.kind,
        "learning_rate": 1.0 if isinstance(o, Add) else o.learning_rate,
        "initial_accumulator": initial_state(o),
        "beta_1": o.beta_1 if isinstance(o, Adam) else 0.0,
        "beta_2": o.beta_2 if isinstance(o, Adam) else 0.0,
        "epsilon": o.epsilon if isinstance(o, Adagrad | RowwiseAdagrad | Adam) else 0.0,
    }


def _schedule(spec: TableSpec) -> dict[str, str | int | float]:
    s = spec.schedule
    return {
        "schedule": s.kind,
        "warmup_steps": s.warmup_steps,
        "decay": s.decay if isinstance(s, InverseTime) else 0.0,
        "steps": s.steps if isinstance(s, Cosine) else 0,
        "floor": s.floor if isinstance(s, Cosine) else 0.0,
    }


def _regularization(spec: TableSpec) -> dict[str, float]:
    r = spec.regularization
    return {
        "l1": r.l1 if isinstance(r, L1 | ElasticNet) else 0.0,
        "l2": r.l2 if isinstance(r, L2 | ElasticNet) else 0.0,
    }


def _text(value: bytes | str | float) -> bytes | str | int:
    return repr(value) if isinstance(value, float) else value
