"""A worker's copies of rows: where several updates are learned before the store hears of any."""

from __future__ import annotations

import numpy as np

from embedding_store.contract import F32, Rows
from embedding_store.decay import rate_at
from embedding_store.errors import SpecError
from embedding_store.model import ModelSettings
from embedding_store.spec import Adagrad, RowwiseAdagrad, Sgd, TableSpec
from native import optimizers
from trainer.settings import TrainerSettings


def check_deltas(model: ModelSettings, settings: TrainerSettings) -> None:
    """Raises SpecError if several updates a call are asked of an optimizer that keeps more than sums."""
    if settings.deltas and not isinstance(model.optimizer, Sgd | Adagrad | RowwiseAdagrad):
        raise SpecError(
            f"passes = {settings.passes}, update_events = {settings.update_events} with optimizer "
            f"'{model.optimizer.kind}': several updates are learned on a trainer's copies and their changes add up in "
            "the store, which sums of squares do and moments don't; use adagrad, rowwise_adagrad or sgd, or passes = 1 "
            "and update_events = 0"
        )


class Copies:
    """Rows that move here by the table's own optimizer, and what that has changed: a flush of mode `deltas`.

    A delta holds gradients' doing alone: decay is the store's.
    """

    def __init__(self, spec: TableSpec, rows: Rows, clock: int) -> None:
        """rows: looked up with state. clock: the event clock that sets the rate."""
        optimizer = spec.optimizer
        if not isinstance(optimizer, Sgd | Adagrad | RowwiseAdagrad):
            raise TypeError(f"'{optimizer.kind}' has no additive state; the settings were not validated")
        self._optimizer, self._clip, self._rate = optimizer, spec.clip_norm, np.float32(rate_at(spec, clock))
        self._before, self._state_before = rows.vectors, rows.state
        self.vectors = np.array(rows.vectors, np.float32, order="C")
        self._state = None if rows.state is None else np.array(rows.state, np.float32, order="C")
        self.gradients = np.zeros_like(self.vectors)  # (u, dim) of the update under way

    def step(self, penalty: float = 0.0) -> None:
        """Move by the gradients, and clear them. penalty: L2 on the rows that have one, inside the gradient."""
        if penalty:
            optimizers.add_penalty(self.gradients, self.vectors, np.float32(penalty))
        if self._clip:
            optimizers.clip(self.gradients, self._clip, self.gradients)
        optimizer = self._optimizer
        if isinstance(optimizer, Sgd) or self._state is None:
            optimizers.sgd(self.vectors, self.gradients, self._rate)
        else:
            kernel = optimizers.adagrad if isinstance(optimizer, Adagrad) else optimizers.rowwise_adagrad
            kernel(self.vectors, self._state, self.gradients, self._rate, np.float32(optimizer.epsilon))
        self.gradients[:] = 0.0

    def deltas(self) -> F32:
        """(u, dim + state_dim) change of vectors and of state."""
        change = self.vectors - self._before
        if self._state is None or self._state_before is None:
            return change
        return np.concatenate([change, self._state - self._state_before], axis=1)
