"""Counts per bucket, for about a microsecond a value."""

from __future__ import annotations

from bisect import bisect_left


class Histogram:
    """Counts per bucket of increasing upper bounds, and the sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def buckets(self) -> list[tuple[str, float]]:
        """(upper bound, values at or below it), as Prometheus wants them."""
        labels = [*map(str, self.bounds), "+Inf"]
        running = 0.0
        out = []
        for label, count in zip(labels, self.counts, strict=True):
            running += count
            out.append((label, running))
        return out
