"""Optimizer declarations. The steps themselves are the kernels of `native.optimizers`.

η is the rate of the step in which the call ends, see `embedding_store.schedules`; g the row's gradient, summed over the
call and clipped. Decay is no part of an optimizer: see `embedding_store.regularization`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from embedding_store.frozen import Frozen

LEARNING_RATE = Field(0.05, gt=0, le=100, allow_inf_nan=False, description="the largest of the schedule")


class Sgd(Frozen):
    """w ← w − η·g."""

    kind: Literal["sgd"] = "sgd"
    learning_rate: float = LEARNING_RATE

    def state_dim(self, dim: int) -> int:
        """float32 values of optimizer state in a row of `dim` values."""
        return 0 * dim


class Adagrad(Frozen):
    """s ← s + g²; w ← w − η·g/(√s + ε), element-wise (Duchi, Hazan, Singer 2011)."""

    kind: Literal["adagrad"] = "adagrad"
    learning_rate: float = LEARNING_RATE
    initial_accumulator: float = Field(0.1, ge=0, allow_inf_nan=False)
    epsilon: float = Field(1e-7, ge=1e-30, allow_inf_nan=False)

    def state_dim(self, dim: int) -> int:
        """float32 values of optimizer state in a row of `dim` values."""
        return dim


class RowwiseAdagrad(Frozen):
    """s ← s + mean(g²); w ← w − η·g/(√s + ε): one accumulator a row (Mudigere et al. 2021, arXiv 2104.05158, §4.1)."""

    kind: Literal["rowwise_adagrad"] = "rowwise_adagrad"
    learning_rate: float = LEARNING_RATE
    initial_accumulator: float = Field(0.1, ge=0, allow_inf_nan=False)
    epsilon: float = Field(1e-7, ge=1e-30, allow_inf_nan=False)

    def state_dim(self, dim: int) -> int:
        """float32 values of optimizer state in a row of `dim` values."""
        return min(dim, 1)


class Adam(Frozen):
    """Lazy Adam (Kingma & Ba 2014, algorithm 1, on the rows that a gradient touches).

    k ← k + 1; m ← β1·m + (1 − β1)·g; v ← β2·v + (1 − β2)·g²; w ← w − η·(m/(1 − β1^k))/(√(v/(1 − β2^k)) + ε).
    k counts the row's own updates: moments do not move on missed steps. Decaying them for those and still correcting by
    k makes rare rows step several times too far. State: m, v, k; k is kept as float32 and stands still at 2^24, where
    both corrections have long been 1.
    """

    kind: Literal["adam"] = "adam"
    learning_rate: float = Field(0.001, gt=0, le=100, allow_inf_nan=False, description="the largest of the schedule")
    beta_1: float = Field(0.9, ge=0, lt=1)
    beta_2: float = Field(0.999, ge=0, lt=1)
    epsilon: float = Field(1e-7, ge=1e-30, allow_inf_nan=False)

    def state_dim(self, dim: int) -> int:
        """float32 values of optimizer state in a row of `dim` values."""
        return 2 * dim + min(dim, 1)


class Add(Frozen):
    """w ← w + g: the call carries deltas, and concurrent deltas add up."""

    kind: Literal["add"] = "add"

    def state_dim(self, dim: int) -> int:
        """float32 values of optimizer state in a row of `dim` values."""
        return 0 * dim


Optimizer = Annotated[Sgd | Adagrad | RowwiseAdagrad | Adam | Add, Field(discriminator="kind")]


def initial_state(optimizer: Sgd | Adagrad | RowwiseAdagrad | Adam | Add) -> float:
    """What every value of a new row's state is."""
    return optimizer.initial_accumulator if isinstance(optimizer, Adagrad | RowwiseAdagrad) else 0.0
