"""Regularization declarations, and the published matrix: which optimizer goes with which regularizer, and why not.

Regularization here is decay of whole tables, one application a step: at each step boundary that the clock passes every
stored row decays with that step's rate. Rows are not visited for it: `embedding_store.decay` has the closed forms.

                   none   l2   l1   elastic_net   coupled l2 in any of them
sgd                 ✓     ✓    ✓        ✓          the same thing as decoupled: w − η(g + λw) = (1 − ηλ)w − ηg
adagrad             ✓     ✓    ✓        ✓          refused: λw would enter the accumulator
rowwise_adagrad     ✓     ✓    ✓        ✓          refused: λw would enter the accumulator
adam                ✓     ✓    ✓        ✓          refused: λw would enter the moments
add                 ✓     –    –        –          refused: no rate that could decay anything

The optimizers with state have decoupled decay (Loshchilov & Hutter 2017, arXiv 1711.05101): η_τ·λ is not divided by √s.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from embedding_store.frozen import Frozen
from embedding_store.optimizers import Adagrad, Adam, Add, RowwiseAdagrad, Sgd
from embedding_store.schedules import Constant, Cosine, InverseTime

_L1 = Field(gt=0, le=1e3, allow_inf_nan=False, description="λ1: a step takes η·λ1 off every magnitude, down to 0")
_L2 = Field(ge=1e-12, le=1e6, allow_inf_nan=False, description="λ2: a step multiplies by 1 − η·λ2")
_COUPLED = Field(False, description="the penalty inside the gradient: only with sgd, where it is the same thing")


class NoRegularization(Frozen):
    """Rows stay as they are until a gradient comes."""

    kind: Literal["none"] = "none"


class L2(Frozen):
    """w ← w·(1 − η_τ·λ2) at every step."""

    kind: Literal["l2"] = "l2"
    l2: float = _L2
    coupled: bool = _COUPLED


class L1(Frozen):
    """w ← sgn(w)·max(0, |w| − η_τ·λ1) at every step (Langford, Li, Zhang 2009; Duchi & Singer 2009)."""

    kind: Literal["l1"] = "l1"
    l1: float = _L1


class ElasticNet(Frozen):
    """w ← sgn(w)·max(0, |w|·(1 − η_τ·λ2) − η_τ·λ1) at every step (Lipton & Elkan 2015, arXiv 1505.06449)."""

    kind: Literal["elastic_net"] = "elastic_net"
    l1: float = _L1
    l2: float = _L2
    coupled: bool = _COUPLED


Regularization = Annotated[NoRegularization | L2 | L1 | ElasticNet, Field(discriminator="kind")]


def check_learning(
    optimizer: Sgd | Adagrad | RowwiseAdagrad | Adam | Add,
    regularization: NoRegularization | L2 | L1 | ElasticNet,
    schedule: Constant | InverseTime | Cosine,
    clip_norm: float,
) -> None:
    """Raises ValueError, with both values and the reason, for a cell of the matrix that isn't there.

    A schedule's largest rate is the optimizer's learning_rate, so η·λ2 < 1 is checked for all of its steps at once;
    one clip at the end of the missed steps equals a clip at each of them only while that holds.
    """
    kind, penalty = optimizer.kind, regularization.kind
    if optimizer.kind == "add":
        if regularization.kind != "none":
            raise ValueError(
                f"optimizer 'add' with regularization '{penalty}': a step decays by its learning rate times λ, and "
                "'add' has no learning rate; use sgd, adagrad, rowwise_adagrad or adam, or regularization 'none'"
            )
        if schedule != Constant():
            raise ValueError(
                f"optimizer 'add' with schedule '{schedule.kind}' (warmup_steps {schedule.warmup_steps}): 'add' has "
                "no learning rate to schedule; scale the deltas before they are sent"
            )
        if clip_norm:
            raise ValueError(
                f"optimizer 'add' with clip_norm {clip_norm}: deltas of several calls would no longer add up to the "
                "delta of all; clip them before they are sent"
            )
        return
    if not isinstance(regularization, L2 | ElasticNet):
        return
    if regularization.coupled and not isinstance(optimizer, Sgd):
        raise ValueError(
            f"optimizer '{kind}' with coupled regularization '{penalty}': λ2·w inside the gradient would move the "
            f"{'moments' if isinstance(optimizer, Adam) else 'accumulator'} on every step that a row misses, each by "
            "the weight of that step, and that has no closed form; use coupled = false (decoupled decay), or sgd, "
            "where both are the same"
        )
    if not optimizer.learning_rate * regularization.l2 < 1:
        raise ValueError(
            f"learning_rate {optimizer.learning_rate} times l2 {regularization.l2} of regularization '{penalty}' is "
            f"{optimizer.learning_rate * regularization.l2:g} at the schedule's largest rate: one step would turn "
            "weights around; it must be below 1"
        )
