"""One micro-batch of learning: a row's gradients, or what several passes over it have changed.

Histories are pooled by numba (`native.pooling`), told apart from their columns by a softmax (`trainer.softmax_step`).
An example's columns are the items of its group: fresh events and replays. The chance of an item to be a column is

    q_j = f · p_j + (1 − f) · count_j / clock

with f the share of fresh examples and p_j the item's share of decayed popularity. Popularity is as before the batch, in
q as in the prior: the current one knows the targets. A replay drops each item of its history with probability
`replay_drop`. Gates (`embedding_store.towers`) learn from fresh events in their first pass only: learned on replays
they fit what is already known by heart. What transitions are worth is learned beside (`trainer.transitions`).

Rows of features are added to items' rows and to users' vectors, so that their gradients are those: summed over the
items that have one, averaged over the rows of users and requests.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from embedding_store.contract import F32, I64, U64
from embedding_store.model import ModelSettings
from embedding_store.towers import BUCKETS, Gates
from embedding_store.validation import MAX_GRADIENT
from native.bounds import within
from native.example_parts import Given, Taken, room, take
from native.pooling import add_rows, gate_gradients, gather_add, pool_gradients, pool_histories
from native.softmax_masks import own_columns, scratch
from trainer.binary_step import BinaryStep
from trainer.copies import Copies
from trainer.dense import DenseWorker
from trainer.examples import Examples
from trainer.item_tower import ItemTower
from trainer.layered_step import has_accelerator, step_on_tensorflow, step_with_user_layers
from trainer.popularity import decayed, log_of
from trainer.settings import TrainerSettings
from trainer.similarity import scaled
from trainer.softmax_step import Gradients, SoftmaxStep, step_without_layers
from trainer.transitions import worth_gradients

_LARGEST = MAX_GRADIENT / 1024
"""Largest gradient of a step: the sum of as many steps as a flush may hold is still one that the store takes."""

_TOGETHER = 1024
"""Examples whose vectors and gradients are in hand at a time, about: they stay in the second cache."""

_NONE, _NOBODY = np.zeros(0, np.float32), np.zeros(0, np.bool_)
F64 = npt.NDArray[np.float64]
_LN2 = float(np.log(2.0))


class Random(Protocol):
    """As much of `numpy.random.Generator` as is used."""

    def permutation(self, x: int) -> I64: ...
    def random(self, size: tuple[int, ...]) -> npt.NDArray[np.float64]: ...


@dataclass(frozen=True, slots=True)
class Step:
    """What one micro-batch asks of the rows, summed per key, and its mean loss (0 rows: 0).

    Gradients (u, dim), or in mode deltas changes of vector and state (u, dim + state_dim).
    """

    item_keys: U64
    item_gradients: F32
    user_keys: U64
    user_gradients: F32
    loss: float
    rows: int
    finite: bool  # and no larger than the store takes
    feature_keys: U64 = field(default_factory=lambda: np.zeros(0, np.uint64))  # of a model with features
    feature_gradients: F32 = field(default_factory=lambda: np.zeros((0, 0), np.float32))

    def of(self, side: str) -> tuple[U64, F32]:
        """(keys, gradients) of table `item`, `user` or `feature`."""
        if side == "feature":
            return self.feature_keys, self.feature_gradients
        return (self.item_keys, self.item_gradients) if side == "item" else (self.user_keys, self.user_gradients)


class Learner:
    """Holds the step. Stateless but for the dense parameters of its worker, and a running rate of positives."""

    def __init__(self, model: ModelSettings, settings: TrainerSettings, dense: DenseWorker, rng: Random) -> None:
        self._model, self._settings, self._dense, self._rng = model, settings, dense, rng
        self._tables = model.tables()
        self._binary = BinaryStep(model, dense) if settings.loss == "bce" else None
        self._on_accelerator = bool(model.dense_layers) and has_accelerator()
        self._step = _compile_step(model, settings, dense, on_accelerator=self._on_accelerator)
        self._unique = bool(model.dense_layers) and not self._on_accelerator and self._binary is None
        # TensorFlow pays for each call; a step over labels has a state that each call moves; rows of features learn by
        # the mean over a pass, and by what items' gradients are at its end
        self._whole = self._on_accelerator or bool(model.features) or settings.loss == "bce"
        self._positives, self._events = 0.0, 0.0  # decayed as popularity is

    @property
    def intercept(self) -> float | None:
        """Of the label events' logits; None while there is none to predict with."""
        return None if self._binary is None else self._binary.intercept

    @intercept.setter
    def intercept(self, value: float | None) -> None:
        if self._binary is not None:
            self._binary.intercept = value

    def learn(self, examples: Examples, clock: int, *, again: bool = False) -> Step:
        """Learn a micro-batch: dense parameters move here, rows in the store. clock: events before these.

        again: the events have moved the dense parameters already, and do not once more.
        """
        columns = self._popularity(examples, clock)
        n, features = examples.fresh, examples.features
        if not self._settings.deltas:
            items = np.zeros_like(examples.items.vectors)
            users = np.zeros((len(examples.user_keys), self._model.dim), np.float32)
            copies = _Rows(examples.items.vectors, items, *self._users(examples, users))
            if features is not None:
                copies.features, copies.feature_gradients = features.rows.vectors, np.zeros_like(features.rows.vectors)
            loss, weight, finite = self._pass(
                examples, np.arange(len(examples.target)), copies, columns, gates=not again, dense=not again
            )
            return self._answer(examples, items, users, copies.feature_gradients, loss, weight, finite)
        item_copies = Copies(self._tables["item"], examples.items, clock)
        user_copies = None if examples.users is None else Copies(self._tables["user"], examples.users, clock)
        own = (None, None) if user_copies is None else (user_copies.vectors, user_copies.gradients)
        copies = _Rows(item_copies.vectors, item_copies.gradients, *own)
        feature_copies = None if features is None else Copies(self._tables["feature"], features.rows, clock)
        if feature_copies is not None:
            copies.features, copies.feature_gradients = feature_copies.vectors, feature_copies.gradients
        loss, weight, finite = 0.0, 0.0, True
        passes, update = self._settings.passes, self._settings.update_events or n
        replays = (len(examples.target) - n) // max(1, n * passes)  # of an event in a pass
        with np.errstate(over="ignore", invalid="ignore"):
            for start in range(0, n, update):
                stop = min(n, start + update)
                for number in range(passes):
                    drawn = n + replays * (number * n + np.array([start, stop]))
                    rows = np.concatenate([np.arange(start, stop), np.arange(*drawn)])
                    one = self._pass(examples, rows, copies, columns, gates=number == 0 and not again, dense=not again)
                    loss, weight, finite = loss + one[0], weight + one[1], finite and one[2]
                    item_copies.step(self._settings.row_penalty)
                    for more in (user_copies, feature_copies):
                        if more is not None:
                            more.step(self._settings.row_penalty)
        users = np.zeros((0, self._model.dim), np.float32) if user_copies is None else user_copies.deltas()
        taught = None if feature_copies is None else feature_copies.deltas()
        return self._answer(examples, item_copies.deltas(), users, taught, loss, weight, finite)

    @staticmethod
    def _users(examples: Examples, gradients: F32) -> tuple[F32 | None, F32 | None]:
        return (None, None) if examples.users is None else (examples.users.vectors, gradients)

    def _answer(
        self, examples: Examples, items: F32, users: F32, features: F32 | None, loss: float, weight: float, finite: bool
    ) -> Step:
        features = np.zeros((0, items.shape[1]), np.float32) if features is None else features
        bounded = _bounded(items) and _bounded(users) and _bounded(features)
        return Step(
            item_keys=examples.item_keys,
            item_gradients=items,
            user_keys=examples.user_keys,
            user_gradients=users,
            feature_keys=np.zeros(0, np.uint64) if examples.features is None else examples.features.keys,
            feature_gradients=features,
            loss=loss / max(1.0, weight),
            rows=int(examples.is_row.sum()),
            finite=finite and bounded,
        )

    def _pass(
        self, examples: Examples, rows: I64, at: _Rows, columns: _Columns, *, gates: bool, dense: bool
    ) -> tuple[float, float, bool]:
        """(loss, summed weight, finite) of one pass over `rows` of the examples; adds the rows' gradients to `at`."""
        order, group = self._order(rows), self._group(len(rows))
        together = len(order) if self._whole else max(1, _TOGETHER // group) * group
        fresh_share = np.count_nonzero(rows < examples.fresh) / max(1, len(rows))
        opened = self._dense.gates
        learned = Gates(*(np.zeros_like(g) for g in (opened.logits, opened.scales, opened.prior, opened.transition)))
        loss, weight, finite, count, flat = 0.0, 0.0, True, 0, _NONE
        places, features = scratch(len(examples.item_keys), group), examples.features
        side = self._items(examples, rows, at)
        for start in range(0, len(order), max(1, together)):
            part = self._part(examples, order[start : start + together], group, at, side, columns, fresh_share, places,
                              learned if gates else None)  # fmt: skip
            flat, count = part.dense if not start else flat + part.dense, count + part.rows
            loss, weight, finite = loss + part.loss, weight + part.weight, finite and part.finite
        if side.tower is not None and count:
            side.tower.back(at.item_gradients, flat)
            finite = finite and _bounded(flat)
        if features is not None and at.feature_gradients is not None:
            # an item's gradient, which is of this pass alone, is that of each row that was added to its own
            features.items.add_gradients(at.feature_gradients, at.item_gradients)
        if finite and (gates or (dense and self._model.dense_layers)):
            self._dense.step(flat, count, learned if gates else None)
        return loss, weight, finite

    def _items(self, examples: Examples, rows: I64, at: _Rows) -> _Side:
        """What a pass compares with and learns of."""
        items, features = at.items, examples.features
        if features is not None and at.features is not None:
            items = features.on_items(at.items, at.features)
        if not self._unique:
            return _Side(items, items, at.item_gradients, None)
        tower = ItemTower(self._dense.values.item, self._dense.layout[1], items, examples.target[rows])
        return _Side(items, tower.outputs, tower.gradients, tower)

    def _part(
        self, examples: Examples, order: I64, group: int, at: _Rows, side: _Side, columns: _Columns,
        fresh_share: float, places: U64, learned: Gates | None,
    ) -> _Part:  # fmt: skip
        """Some whole groups of a pass; adds the gradients of gates to `learned`."""
        opened, features, items = self._dense.gates, examples.features, side.items
        taken, rows = self._taken(examples, order, at, columns, fresh_share)
        recent, target, bucket, weight = taken.recent, taken.target, taken.bucket, taken.weight

        shares = np.empty((len(order), *opened.logits.shape), np.float32)
        pooled = np.empty((len(order), self._model.dim), np.float32)
        pool_histories(items, recent, opened.logits, opened.scales, bucket, shares, pooled)
        if at.users is not None:
            gather_add(at.users, taken.user, pooled)
        if features is not None and at.features is not None:
            features.users.add_to(pooled, at.features, taken.own)
        prior, popularity, named = opened.prior[bucket], taken.popularity, np.take(side.columns, target, axis=0)
        d_transition = np.zeros_like(opened.transition)
        if self._binary is not None:
            label = examples.label[np.maximum(order, 0)]
            found = self._binary(pooled, named, prior, popularity, label, weight, fit=learned is not None)
        else:
            mask = np.empty((len(order), group), bool)
            own_columns(group, target, taken.is_column, taken.seen_start, taken.seen_stop, examples.seen, mask, places)
            found = self._step(pooled, named, prior, popularity, taken.bias, mask, weight)
            if learned is not None and self._model.learned_gates:
                vectors = np.take(items, target, axis=0)
                d_transition = worth_gradients(self._model, self._dense.values, examples, order, taken.is_fresh_row,
                                               pooled, vectors, mask, popularity, taken.bias, weight,
                                               columns.log_popularity)  # fmt: skip

        add_rows(found.items, taken.target_row, side.gradients)
        pool_gradients(found.users, recent, shares, opened.scales, bucket, at.item_gradients)
        if at.users is not None and at.user_gradients is not None:
            add_rows(found.users, taken.user, at.user_gradients)
        if features is not None and at.feature_gradients is not None:
            features.users.add_mean_gradients(
                at.feature_gradients, found.users, np.where(weight > 0, taken.own, -1)
            )  # fmt: skip
        finite = bool(np.isfinite(found.loss)) and _bounded(found.dense)  # rows: once they are summed, see `_answer`
        if learned is not None and finite and self._model.learned_gates:
            self._learn_gates(learned, found, items, recent, shares, bucket, np.flatnonzero(taken.is_fresh_row))
            learned.transition[:] += d_transition
        return _Part(found.loss, float(weight.sum()), rows, finite, found.dense)

    def _taken(
        self, examples: Examples, order: I64, at: _Rows, columns: _Columns, fresh_share: float
    ) -> tuple[Taken, int]:
        """(columns of the examples in that order, how many are rows)."""
        length = examples.recent.shape[1]
        dropped = np.zeros((0, length), bool)
        if self._settings.replay_drop:
            replays = int(np.count_nonzero(order >= examples.fresh))
            dropped = self._rng.random((replays, length)) < self._settings.replay_drop
        told = _NOBODY if examples.features is None else examples.features.users.filled
        given = Given(examples.recent, examples.target, examples.length, examples.is_row, examples.is_column,
                      examples.weight, examples.user, examples.seen_start, examples.seen_stop, told)  # fmt: skip
        out = room(len(order), length)
        rows = take(order, examples.fresh, dropped, at.users is not None, BUCKETS, columns.log_popularity,
                    columns.bias(fresh_share), given, out)  # fmt: skip
        return out, rows

    def _learn_gates(
        self, learned: Gates, found: Gradients, items: F32, recent: I64, shares: F32, bucket: I64, at: I64
    ) -> None:
        """Add the gradients of the gates by the examples `at`."""
        scales = self._dense.gates.scales
        gate_gradients(at, found.users, items, recent, shares, scales, bucket, learned.logits, learned.scales)
        if self._model.popularity_weight:  # 0: no prior, and none to be learned
            np.add.at(learned.prior, bucket[at], found.prior[at])

    def _group(self, n: int) -> int:
        """Examples of a group: as even as can be, but on an accelerator, where each size would be traced anew."""
        most = self._settings.group
        return most if self._on_accelerator else -(-n // -(-n // most)) if n else 1

    def _order(self, rows: I64) -> I64:
        """The examples in random order, padded with -1 to whole groups: groups mix fresh events and replays."""
        n, group = len(rows), self._group(len(rows))
        order = np.full(-(-n // group) * group, -1, np.int64)
        order[:n] = rows if n <= group else rows[self._rng.permutation(n)]
        return order

    def _popularity(self, examples: Examples, clock: int) -> _Columns:
        """What every item's popularity says at `clock`, before the batch."""
        rows, half_life = examples.items, self._model.popularity_half_life
        now = decayed(rows.popularity, rows.last_seen, clock, half_life)
        total = 1.0
        if self._events:
            # of a stream of such positives for ever, less the time before the stream
            rate = self._positives / self._events
            total = max(1.0, rate * half_life / _LN2 * -np.expm1(-_LN2 * clock / half_life))
        often = np.clip(rows.count, 1, None) / max(1.0, float(clock))
        floor = self._model.popularity_floor
        n = examples.fresh
        left = 2.0 ** (-n / half_life)
        self._positives = left * self._positives + float(examples.positive_weight)
        self._events = left * self._events + n
        return _Columns(log_of(now, floor), now / total, np.minimum(often, 1.0), 1.0 / max(1, clock))


def _bounded(gradients: F32) -> bool:
    """Whether all are finite and no larger than the store takes."""
    return within(gradients, _LARGEST)


class _Part(NamedTuple):
    """What some groups of a pass gave."""

    loss: float  # summed
    weight: float
    rows: int
    finite: bool
    dense: F32  # see `Gradients`


@dataclass(slots=True)
class _Rows:
    """Rows as they stand, and where their gradients go."""

    items: F32
    item_gradients: F32
    users: F32 | None
    user_gradients: F32 | None
    features: F32 | None = None
    feature_gradients: F32 | None = None


class _Side(NamedTuple):
    """The items of a pass."""

    items: F32  # (u, dim), their features added
    columns: F32  # (u, …) what users are compared with by the step: the same, or what the layers make of it
    gradients: F32  # of those
    tower: ItemTower | None


class _Columns:
    """What is told of every item of a micro-batch as a column."""

    def __init__(self, log_popularity: F32, popular: F64, often: F64, least: float) -> None:
        """popular: share of decayed popularity. often: running frequency. least: of q. All of (u,) items."""
        self.log_popularity, self._popular, self._often, self._least = log_popularity, popular, often, least
        self._of: float = -1.0
        self._bias = _NONE

    def bias(self, fresh: float) -> F32:
        """(u,) −ln q, where `fresh` of the columns are fresh; kept, as most passes have the same share."""
        if fresh != self._of:
            q = np.maximum(fresh * self._popular + (1.0 - fresh) * self._often, self._least)
            self._of, self._bias = fresh, -np.log(q).astype(np.float32)
        return self._bias


def _compile_step(
    model: ModelSettings, settings: TrainerSettings, dense: DenseWorker, *, on_accelerator: bool
) -> SoftmaxStep:
    if on_accelerator:
        return step_on_tensorflow(model, settings.group, dense, settings.label_smoothing)
    if model.dense_layers:
        return step_with_user_layers(model, dense, settings.label_smoothing)
    step = step_without_layers(settings.label_smoothing)
    return scaled(step, cosine=model.similarity == "cosine", temperature=model.temperature)
