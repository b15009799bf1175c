"""Counts per bucket, for about a microsecond a value."""

from __future__ import annotations

from bisect import bisect_left

from serving.numbers import Numbers, numbers


class Histogram:
    """Counts per bucket of increasing upper bounds, and the sum."""

    __slots__ = ("_total", "bounds", "counts")

    def __init__(self, bounds: tuple[float, ...], cells: Numbers | None = None) -> None:
        """cells: where counts and sum are kept, `cells_of(bounds)` of them."""
        self.bounds = bounds
        if cells is None:
            cells = numbers(self.cells_of(bounds))
        self.counts, self._total = cells[:-1], cells[-1:]

    @staticmethod
    def cells_of(bounds: tuple[float, ...]) -> int:
        """A count for each bucket, and the sum."""
        return len(bounds) + 2

    @property
    def total(self) -> float:
        """Sum of the values."""
        return self._total[0]

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self._total[0] += value

    def buckets(self) -> list[tuple[str, float]]:
        """(upper bound, values at or below it), as Prometheus wants them."""
        labels = [*map(str, self.bounds), "+Inf"]
        running = 0.0
        out = []
        for label, count in zip(labels, self.counts, strict=True):
            running += count
            out.append((label, running))
        return out
