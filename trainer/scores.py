"""Ranks to HR@k, NDCG@k and MRR: in total, over the last tests, faded; and whether two of them differ."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]


class Score:
    """Of one ranking. A test is its target's rank, inf for a miss."""

    def __init__(self, k: int, window: int) -> None:
        """window: tests of `recent`, and what tests fade to 1/e after."""
        self._k, self._window = k, window
        self.tests = self.hits = 0
        self.ndcg = self.reciprocal_ranks = 0.0  # sums
        self._last = np.full(window, np.inf)  # ranks
        self._faded = np.zeros(3)  # of hits, gains and reciprocal ranks
        self._faded_tests = 0.0

    def add(self, ranks: F64) -> None:
        """Take in tests (m,), oldest first."""
        m = len(ranks)
        if not m:
            return
        hits = ranks <= self._k
        ages = np.exp(-np.arange(m - 1, -1, -1) / self._window)
        left = math.exp(-m / self._window)
        self._faded = left * self._faded + (ages * self._values(ranks)).sum(axis=1)
        self._faded_tests = left * self._faded_tests + float(ages.sum())
        newest = ranks[-self._window :]
        self._last[(self.tests + m - len(newest) + np.arange(len(newest))) % self._window] = newest
        self.tests += m
        self.hits += int(hits.sum())
        self.ndcg += float((1.0 / np.log2(1.0 + ranks[hits])).sum())
        self.reciprocal_ranks += float((1.0 / ranks).sum())

    @property
    def hit_rate(self) -> float:
        """HR@k of all tests; NaN before the first, as the others are."""
        return self.hits / self.tests if self.tests else math.nan

    @property
    def recent(self) -> float:
        """HR@k of the last `window` tests."""
        return self.recent_figures()[0]

    @property
    def faded(self) -> float:
        """HR@k with weights that fall exponentially with age (Gama, Sebastião, Rodrigues 2013, §4)."""
        return self.faded_figures()[0]

    def recent_figures(self) -> tuple[float, float, float]:
        """(HR@k, NDCG@k, MRR) of the last `window` tests."""
        n = min(self.tests, self._window)
        return self._means(self._values(self._last[:n]).sum(axis=1), n)

    def faded_figures(self) -> tuple[float, float, float]:
        """(HR@k, NDCG@k, MRR), faded."""
        return self._means(self._faded, self._faded_tests)

    def _values(self, ranks: F64) -> F64:
        """(3, m) hit, gain and reciprocal rank of each test."""
        hits = ranks <= self._k
        return np.stack([hits.astype(np.float64), np.where(hits, 1.0 / np.log2(1.0 + ranks), 0.0), 1.0 / ranks])

    @staticmethod
    def _means(sums: F64, n: float) -> tuple[float, float, float]:
        return (float(sums[0] / n), float(sums[1] / n), float(sums[2] / n)) if n else (math.nan,) * 3


class Paired:
    """Whether one ranking hits more often than another on the same tests (McNemar 1947, with continuity correction)."""

    def __init__(self) -> None:
        self.only_first = self.only_second = 0

    def add(self, first: Bool, second: Bool) -> None:
        """Hits (m,) of both on the same tests."""
        self.only_first += int((first & ~second).sum())
        self.only_second += int((second & ~first).sum())

    @property
    def z(self) -> float:
        """Positive where the first hits more; beyond ±1.96 chance alone would do that once in twenty times."""
        different = self.only_first + self.only_second
        if not different:
            return 0.0
        gap = self.only_first - self.only_second
        return math.copysign(max(0, abs(gap) - 1), gap) / math.sqrt(different)

    @property
    def p_value(self) -> float:
        """Of the two-sided test, normal approximation."""
        return math.erfc(abs(self.z) / math.sqrt(2.0))
