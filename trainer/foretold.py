"""How sure the model is of a micro-batch before it learns it: a bounded sample, so that it costs next to nothing."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from embedding_store import towers as towers_of
from embedding_store.contract import F32, I64, U64
from embedding_store.model import ModelSettings
from embedding_store.towers import Towers, bucket_of, item_outputs
from native.pooling import pool_histories
from native.softmax import losses_among
from trainer.binary_step import sigmoid
from trainer.examples import Examples
from trainer.label_scores import log_losses
from trainer.popularity import decayed, log_of

F64 = npt.NDArray[np.float64]

_ROWS = _COLUMNS = 128


@dataclass(frozen=True, slots=True)
class Foretold:
    """Means over the events foretold; all 0 where there are none.

    loss: of a softmax over the event's own item and the columns, less what guessing would lose, in nats.
    """

    events: int
    loss: float = 0.0
    variance: float = 0.0  # of one event's loss
    labels: bool = False  # whether the loss is that of labels, and calibration means anything
    calibration: float = 0.0  # predicted − observed
    calibration_variance: float = 0.0
    targets: U64 = field(default_factory=lambda: np.zeros(0, np.uint64))  # (events,) their items


NOTHING = Foretold(0)


def predicted(examples: Examples, model: ModelSettings, towers: Towers, clock: int, intercept: float, rows: I64) -> F64:
    """(n,) chance that some of the events are positives. Those without anything to predict from have the item's."""
    users, prior = user_outputs(examples, model, towers, rows)
    items = item_outputs(model, towers.item, examples.vectors[examples.target[rows]])
    popularity = log_popularity(examples, model, clock, examples.target[rows])
    return sigmoid(np.einsum("ij,ij->i", users, items) + prior * popularity + np.float32(intercept))


def foretell_labels(
    examples: Examples, model: ModelSettings, towers: Towers, clock: int, intercept: float | None
) -> Foretold:
    """The same of label events: their log loss, and what was predicted less what is observed. Pure."""
    rows = _spread(np.flatnonzero(examples.is_row[: examples.fresh]), _ROWS)
    if not len(rows) or intercept is None:
        return NOTHING
    with np.errstate(over="ignore", invalid="ignore"):
        p, label = predicted(examples, model, towers, clock, intercept, rows), examples.label[rows].astype(np.float64)
        losses, off = log_losses(p, label), p - label
        return Foretold(
            len(rows), float(losses.mean()), float(losses.var()), True, float(off.mean()), float(off.var()),
            examples.item_keys[examples.target[rows]],
        )  # fmt: skip


def foretell(examples: Examples, model: ModelSettings, towers: Towers, clock: int) -> Foretold:
    """Of at most 128 of the fresh positives that have something to predict from. Pure.

    Columns are the items of at most 128 replays, which a micro-batch has no say in; without replays those of the
    sample. clock: events before these.
    """
    rows = _spread(np.flatnonzero(examples.is_row[: examples.fresh]), _ROWS)
    drawn = examples.fresh + np.flatnonzero(examples.is_column[examples.fresh :])
    columns = examples.target[_spread(drawn, _COLUMNS)]
    if len(columns) < 2:
        columns = np.unique(examples.target[rows])
    if not len(rows) or len(columns) < 2:
        return NOTHING
    with np.errstate(over="ignore", invalid="ignore"):
        own, others = _scores(examples, model, towers, clock, rows, columns)
        losses = np.empty(len(rows))
        losses_among(own, others, examples.target[rows], columns, losses)
        targets = examples.item_keys[examples.target[rows]]
        return Foretold(len(rows), float(losses.mean()), float(losses.var()), targets=targets)


def _spread(rows: I64, most: int) -> I64:
    """At most so many of them, evenly from first to last."""
    return rows if len(rows) <= most else rows[np.arange(most) * len(rows) // most]


def _scores(
    examples: Examples, model: ModelSettings, towers: Towers, clock: int, rows: I64, columns: I64
) -> tuple[F32, F32]:
    """((n,) of the rows' own items, (n, m) of the columns): what serving would rank by, transitions left out."""
    users, prior = user_outputs(examples, model, towers, rows)
    n, needed = len(rows), np.concatenate([examples.target[rows], columns])
    items = item_outputs(model, towers.item, examples.vectors[needed])
    popularity = log_popularity(examples, model, clock, needed)
    own = np.einsum("ij,ij->i", users, items[:n]) + prior * popularity[:n]
    return own, users @ items[n:].T + prior[:, None] * popularity[n:]


def user_outputs(examples: Examples, model: ModelSettings, towers: Towers, rows: I64) -> tuple[F32, F32]:
    """((n, output_dim) users' vectors, (n,) weight of log popularity) of some of the examples."""
    gates, recent, bucket = towers.gates, examples.recent[rows], bucket_of(examples.length[rows])
    shares = np.empty((len(rows), *gates.logits.shape), np.float32)
    pooled = np.empty((len(rows), model.dim), np.float32)
    pool_histories(examples.vectors, recent, gates.logits, gates.scales, bucket, shares, pooled)
    if examples.users is not None:
        pooled += examples.users.vectors[examples.user[rows]]
    if examples.features is not None:
        examples.features.users.add_to(pooled, examples.features.rows.vectors, rows)
    return towers_of.user_outputs(model, towers.user, pooled), gates.prior[bucket]


def log_popularity(examples: Examples, model: ModelSettings, clock: int, items: I64) -> F32:
    """(n,) ln of the decayed popularity of some of the items, before the micro-batch."""
    now = decayed(examples.items.popularity[items], examples.items.last_seen[items], clock, model.popularity_half_life)
    return log_of(now, model.popularity_floor)
