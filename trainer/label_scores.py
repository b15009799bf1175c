"""Log loss and AUC of label events, test then train: in total, over the last ones, faded."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

_SUREST = 1e-7
"""A prediction counts as no surer: one event must not have an infinite loss."""


@dataclass(frozen=True, slots=True)
class LabelTests:
    """m label events, in stream order."""

    place: I64  # (m,) of the event in its partition
    predicted: F64  # (m,) probability of a positive, before the event was learned
    label: F64  # (m,) 1 or 0


class LabelScore:
    """Of one model."""

    def __init__(self, window: int) -> None:
        """window: events of `recent` and `auc`, and what events fade to 1/e after."""
        self._window = window
        self._predicted, self._label = np.zeros(0), np.zeros(0)
        self._faded_loss = self._faded = 0.0
        self.tests = 0

    def add(self, tests: LabelTests) -> None:
        """Take in tests, oldest first."""
        m = len(tests.label)
        if not m:
            return
        losses = log_losses(tests.predicted, tests.label)
        ages = np.exp(-np.arange(m - 1, -1, -1) / self._window)
        left = math.exp(-m / self._window)
        self._faded_loss = left * self._faded_loss + float((ages * losses).sum())
        self._faded = left * self._faded + float(ages.sum())
        self._predicted = np.concatenate([self._predicted, tests.predicted])[-self._window :]
        self._label = np.concatenate([self._label, tests.label])[-self._window :]
        self.tests += m

    @property
    def recent(self) -> float:
        """Mean log loss of the last `window` events; NaN before the first, as the others are."""
        return float(log_losses(self._predicted, self._label).mean()) if self.tests else math.nan

    @property
    def faded(self) -> float:
        """Mean log loss with weights that fall exponentially with age."""
        return self._faded_loss / self._faded if self._faded else math.nan

    @property
    def auc(self) -> float:
        """Of the last `window` events; NaN where all have one label."""
        return auc(self._predicted, self._label)

    @property
    def calibration(self) -> float:
        """Mean predicted over mean observed, of the last `window` events; NaN without a positive."""
        observed = float(self._label.mean()) if self.tests else 0.0
        return float(self._predicted.mean()) / observed if observed else math.nan


def log_losses(predicted: F64, label: F64) -> F64:
    """(m,) −log of what was predicted for what came."""
    p = np.clip(np.where(label > 0, predicted, 1.0 - predicted), _SUREST, 1.0)
    return np.asarray(-np.log(p))


def auc(predicted: F64, label: F64) -> float:
    """Chance that a positive is predicted above a negative, ties half (Mann & Whitney 1947); NaN without both."""
    positives = int((label > 0).sum())
    negatives = len(label) - positives
    if not positives or not negatives:
        return math.nan
    values, inverse, counts = np.unique(predicted, return_inverse=True, return_counts=True)
    del values
    ranks = (np.cumsum(counts) - (counts - 1) / 2.0)[inverse]
    above = float(ranks[label > 0].sum()) - positives * (positives + 1) / 2.0
    return above / (positives * negatives)
