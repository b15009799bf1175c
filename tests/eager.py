"""The eager store that lazy ones are held to: float64, one step after the other, the whole table at each.

Plain loops, on purpose: nothing here is shared with what it checks, formulas are those of the optimizers' papers.
"""

from __future__ import annotations

import math

import numpy as np

from embedding_store.spec import TableSpec


def rate(spec: TableSpec, step: int) -> float:
    """η of a step."""
    s, base = spec.schedule, spec.optimizer.learning_rate
    if step < s.warmup_steps:
        return base * (step + 1) / s.warmup_steps
    u = step - s.warmup_steps
    if s.kind == "inverse_time":
        return base / (1 + s.decay * u)
    if s.kind == "cosine":
        wave = (1 + math.cos(math.pi * u / s.steps)) / 2 if u < s.steps else 0.0
        return base * (s.floor + (1 - s.floor) * wave)
    return base


def decayed(spec: TableSpec, w: np.ndarray, step: int) -> np.ndarray:
    """One vector, or many, after the decay of one step."""
    r, eta = spec.regularization, rate(spec, step)
    kept = 1 - eta * getattr(r, "l2", 0.0)
    return np.sign(w) * np.maximum(0, np.abs(w) * kept - eta * getattr(r, "l1", 0.0))


def learned(spec: TableSpec, w: np.ndarray, state: np.ndarray, g: np.ndarray, step: int):
    """(vector, state) of one row after its gradient."""
    o, eta = spec.optimizer, rate(spec, step) if spec.optimizer.kind != "add" else 1.0
    norm = np.sqrt((g**2).sum())
    if spec.clip_norm and norm > spec.clip_norm:
        g = g * spec.clip_norm / norm
    if o.kind == "add":
        return w + g, state
    if o.kind == "sgd":
        return w - eta * g, state
    if o.kind in ("adagrad", "rowwise_adagrad"):
        state = state + (g**2 if o.kind == "adagrad" else (g**2).mean())
        return w - eta * g / (np.sqrt(state) + o.epsilon), state
    m, v, k = state[: len(w)], state[len(w) : -1], state[-1] + 1
    m = o.beta_1 * m + (1 - o.beta_1) * g
    v = o.beta_2 * v + (1 - o.beta_2) * g**2
    step_size = (m / (1 - o.beta_1**k)) / (np.sqrt(v / (1 - o.beta_2**k)) + o.epsilon)
    return w - eta * step_size, np.concatenate([m, v, [k]])


class EagerTable:
    """One table on one clock."""

    def __init__(self, spec: TableSpec, initial) -> None:
        """initial: key → initial vector."""
        self.spec, self.clock, self.initial = spec, 0, initial
        self.rows: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def apply(self, events: int, gradients: dict[int, object]) -> None:
        """A call of so many events: decay at every step boundary that the clock passes, then the gradients."""
        spec, before = self.spec, self.clock // self.spec.step_events
        self.clock += events
        now = self.clock // spec.step_events
        for step in range(before, now):
            self.rows = {key: (decayed(spec, w, step), state) for key, (w, state) in self.rows.items()}
        for key, g in gradients.items():
            start = getattr(spec.optimizer, "initial_accumulator", 0.0)
            w, state = self.rows.get(key, (self.initial(key), np.full(spec.state_dim, start)))
            self.rows[key] = learned(spec, np.asarray(w, np.float64), state, np.asarray(g, np.float64), now)

    def vectors(self, keys) -> np.ndarray:
        """(n, dim)"""
        return np.array([self.rows[key][0] if key in self.rows else self.initial(key) for key in keys], np.float64)

    def states(self, keys) -> np.ndarray:
        """(n, state_dim) of rows there are."""
        return np.array([self.rows[key][1] for key in keys], np.float64)
