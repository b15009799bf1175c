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
"""That are worked on at a time, about: with what belongs to them they stay in the second cache."""


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
        kept, dim = mask.reshape(-1, group, group), users.shape[1]
        u, v = users.reshape(-1, group, dim), items.reshape(-1, group, dim)
        a, w, lp, b = (x.reshape(-1, group) for x in (prior, weight, popularity, bias))
        d_u, d_v, d_a = np.empty_like(u), np.empty_like(v), np.empty_like(a)
        at_once, loss = _cut(n, group), 0.0
        for start in range(0, len(u), at_once.groups):
            some = slice(start, start + at_once.groups)
            columns = v[some]
            turned = np.ascontiguousarray(columns.transpose(0, 2, 1))  # OpenBLAS takes half as long with it turned
            for first in range(0, group, at_once.rows):
                rows = slice(first, first + at_once.rows)
                logits = np.matmul(u[some, rows], turned)
                loss += push(
                    logits, kept[some, rows], a[some, rows], lp[some], b[some], w[some, rows], first, smoothing,
                    d_a[some, rows],
                )  # fmt: skip
                np.matmul(logits, columns, out=d_u[some, rows])
                if first == 0:
                    np.matmul(logits.transpose(0, 2, 1), u[some, rows], out=d_v[some])
                else:
                    d_v[some] += np.matmul(logits.transpose(0, 2, 1), u[some, rows])
        return Gradients(loss, d_u.reshape(-1, dim), d_v.reshape(-1, dim), d_a.reshape(-1), none)

    return step


class _Cut(NamedTuple):
    groups: int  # at a time, in whole …
    rows: int  # … or if it is one, rows of it


def _cut(n: int, group: int) -> _Cut:
    """How n examples are cut so that about `_LOGITS` logits are in hand."""
    groups = max(1, min(n, _LOGITS // group) // group)
    return _Cut(groups, group if groups > 1 else min(group, max(64, _LOGITS // group)))
