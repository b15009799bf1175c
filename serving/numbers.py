"""Numbers that other processes may share; one costs a third of NumPy's scalars."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import TypeAlias

Numbers: TypeAlias = "memoryview[float]"
"""(n,) float64, each read and written whole: eight aligned bytes."""


def numbers(n: int) -> Numbers:
    """Zeros, of this process alone."""
    return memoryview(array("d", bytes(8 * n)))


class Parts:
    """Parts of some numbers, one after the other: the same in every process that takes the same ones."""

    def __init__(self, whole: Numbers) -> None:
        self._whole, self._at = whole, 0

    def take(self, n: int) -> Numbers:
        """The next n. Raises AssertionError where there are fewer."""
        start, self._at = self._at, self._at + n
        if self._at > len(self._whole):
            raise AssertionError(f"{self._at} numbers are kept in {len(self._whole)}")
        return self._whole[start : self._at]

    def several(self, times: int, n: int) -> Iterator[Numbers]:
        """`take` so many times."""
        for _ in range(times):
            yield self.take(n)
