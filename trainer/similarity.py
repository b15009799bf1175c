"""A softmax step over cosines or under a temperature, made of one over dot products: both sides are scaled before it,
and its gradients go back through that.

    û = u/(‖u‖·T), v̂ = v/‖v‖;   ∂/∂u = (g − (g·u)u/‖u‖²)/(‖u‖·T)
"""

from __future__ import annotations

import numpy as np

from embedding_store.contract import F32, Bool
from embedding_store.towers import SHORTEST
from trainer.softmax_step import Gradients, SoftmaxStep


def scaled(step: SoftmaxStep, *, cosine: bool, temperature: float) -> SoftmaxStep:
    """`step` over what `embedding_store.towers.user_outputs` and `item_outputs` make of towers without layers."""
    if not cosine and temperature == 1.0:
        return step
    cold = np.float32(1.0 / temperature)

    def over(users: F32, items: F32, prior: F32, popularity: F32, bias: F32, mask: Bool, weight: F32) -> Gradients:
        if not cosine:
            found = step(users * cold, items, prior, popularity, bias, mask, weight)
            return found._replace(users=found.users * cold)
        (u, u_length), (v, v_length) = _unit(users), _unit(items)
        found = step(u * cold, v, prior, popularity, bias, mask, weight)
        return found._replace(
            users=through_unit(found.users * cold, u, u_length), items=through_unit(found.items, v, v_length)
        )

    return over


def _unit(x: F32) -> tuple[F32, F32]:
    """((n, d) rows of length 1, (n, 1) what they were divided by)."""
    length = np.sqrt(np.maximum(np.einsum("ij,ij->i", x, x), np.float32(SHORTEST)))[:, None]
    return x / length, length


def through_unit(gradient: F32, unit: F32, length: F32) -> F32:
    """(n, d) gradient of the rows that were made `unit` by dividing by `length`."""
    along = np.einsum("ij,ij->i", gradient, unit)[:, None]
    along[length <= np.float32(np.sqrt(SHORTEST))] = 0.0  # divided by a constant
    out: F32 = (gradient - along * unit) / length
    return out
