"""Learning what transitions are worth, from fresh events alone.

Rows of the model learn from a softmax without transitions: of a replay its own is among those that are stored, and
would explain it away. Beside it, each fresh event with transitions from its user's newest item has a softmax with them,

    -w_i · log softmax_j(t · (u_i · v_j + a_i · lp_j + max(0, g) · d_ij + max(0, h) · n_ij) − log q_j)

from which g, h and t of its bucket learn and nothing else; t, how far scores are to be trusted beside the evidence d_ij
and n_ij of `embedding_store.transitions`, direct and near, moves no ranking.
"""

from __future__ import annotations

import numpy as np

from embedding_store.contract import F32, I64, Bool
from embedding_store.errors import SpecError
from embedding_store.model import ModelSettings
from embedding_store.towers import Towers, bucket_of, item_outputs, user_outputs
from embedding_store.transitions import evidence
from native.transitions import add_prior, transition_gradients
from trainer.examples import Examples
from trainer.settings import TrainerSettings


def check_transitions(model: ModelSettings, settings: TrainerSettings) -> None:
    """Raises SpecError if transitions are asked of a model that predicts labels."""
    if model.successors and settings.loss == "bce":
        raise SpecError(
            f"successors = {model.successors} with loss = 'bce': labels are predicted from histories alone, and what "
            "transitions are worth would not be learned; set [model] successors = 0"
        )


def worth_gradients(
    model: ModelSettings, towers: Towers, examples: Examples, order: I64, rows: Bool, users: F32, items: F32,
    mask: Bool, popularity: F32, bias: F32, weight: F32, item_popularity: F32,
) -> F32:  # fmt: skip
    """Gradient of the summed loss, shaped as `Gates.transition`.

    order (n,) numbers of the examples, -1 for none; rows (n,) those to learn from, fresh all of them; users, items
    (n, dim) before their layers; mask (n, group); popularity, bias (−ln q), weight (n,); item_popularity (u,) log of
    decayed popularity of all of the examples' items.
    """
    gates, after = towers.gates, examples.after
    found = np.zeros_like(gates.transition)
    if after is None:
        return found
    group, scratch = mask.shape[1], np.zeros((2, len(examples.item_keys)), np.float32)
    values = evidence(after.direct, after.near, item_popularity[after.items], model.popularity_half_life)
    there = rows.copy()
    there[there] = np.diff(after.bounds)[order[there]] > 0
    for start in range(0, len(order), group):
        columns = slice(start, start + group)
        own = np.flatnonzero(there[columns])
        if not len(own):
            continue
        chosen = order[start + own]
        bucket, kept = bucket_of(examples.length[chosen]), mask[start + own]
        scores = (
            user_outputs(model, towers.user, users[start + own]) @ item_outputs(model, towers.item, items[columns]).T
        )
        add_prior(scores, gates.prior[bucket], popularity[columns], kept)
        each = np.empty((3, len(own)), np.float32)
        transition_gradients(
            scores, kept, bias[columns], own, examples.target[np.maximum(order[columns], 0)], after.bounds[chosen],
            after.bounds[chosen + 1], after.items, values, gates.worth[:, bucket], gates.transition[2, bucket],
            weight[start + own], scratch, each,
        )  # fmt: skip
        for learned, gradients in zip(found, each, strict=True):
            np.add.at(learned, bucket, gradients)
    return found
