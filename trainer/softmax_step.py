"""One pass of sampled softmax over grouped examples, by numba and BLAS. With layers: `trainer.layered_step`.

Loss of row i over the columns j of its group, its own item at j = i (Yi et al. 2019):

    -w_i · Σ_j t_ij · log softmax_j(u_i · v_j + a_i · lp_j − log q_j)

with u, v the outputs of the towers, a_i the row's weight of log popularity lp_j, q_j the chance of item j to be a
column, t_ij smoothed labels, and columns its user has left out. TensorFlow's gradients are the oracle.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from embedding_store.contract import F32, Bool
from native.softmax import push

_LOGITS = 1 << 16
"""That are worked on at a time: with what belongs to them they stay in the second cache."""


class Gradients(NamedTuple):
    """Of the summed loss of n examples."""

    loss: float
    users: F32  # (n, dim) before the user's layers
    items: F32  # (n, dim) before the item's layers
    prior: F32  # (n,) ∂/∂a_i
    dense: F32  # (size,) of the flat dense parameters; that of gates is 0


class SoftmaxStep(Protocol):
    """n examples, a multiple of `group`; both sides of example i are row i."""

    def __call__(
        self, users: F32, items: F32, prior: F32, popularity: F32, bias: F32, mask: Bool, weight: F32
    ) -> Gradients:
        """users, items (n, dim); prior, popularity, bias (−ln q), weight (n,), 0 for no row; mask (n, group)."""


def step_without_layers(smoothing: float) -> SoftmaxStep:
    """The step for towers without dense layers."""
    none = np.zeros(0, np.float32)

    def step(users: F32, items: F32, prior: F32, popularity: F32, bias: F32, mask: Bool, weight: F32) -> Gradients:
        n, group = mask.shape
        d_users, d_items, d_prior = np.empty_like(users), np.empty_like(items), np.empty(n, np.float32)
        together = max(1, _LOGITS // group**2) * group
        room, loss = np.empty((min(n, together), group), np.float32), 0.0
        for start in range(0, n, together):
            rows = slice(start, min(n, start + together))
            u, v, du, dv = (x[rows].reshape(-1, group, x.shape[1]) for x in (users, items, d_users, d_items))
            logits = room[: rows.stop - start]
            grouped = logits.reshape(-1, group, group)
            np.matmul(u, v.transpose(0, 2, 1), out=grouped)
            loss += push(
                logits, mask[rows], prior[rows], popularity[rows], bias[rows], weight[rows], smoothing, d_prior[rows]
            )
            np.matmul(grouped, v, out=du)
            np.matmul(grouped.transpose(0, 2, 1), u, out=dv)
        return Gradients(loss, d_users, d_items, d_prior, none)

    return step
