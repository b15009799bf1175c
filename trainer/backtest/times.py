"""Times in any unit to milliseconds since the epoch."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import numpy as np
import numpy.typing as npt

from trainer.backtest.errors import DataUnusable

_PER_MS = {"s": 1e-3, "ms": 1.0, "us": 1e3, "ns": 1e6}
UNITS = (*_PER_MS, "iso", "auto")


def to_ms(values: list[Any], unit: str = "auto") -> npt.NDArray[np.int64]:
    """(n,) from numbers or ISO 8601 texts. auto: texts that are no numbers are ISO; of numbers the largest tells:
    seconds reach 10^11 in the year 5138, and milliseconds have been above it since 1973. Raises DataUnusable."""
    if unit not in UNITS:
        raise DataUnusable(f"time unit {unit!r}: it is one of {', '.join(UNITS)}")
    if not values:
        return np.zeros(0, np.int64)
    if unit == "iso" or (unit == "auto" and not _is_number(values[0])):
        return np.array([_iso(value, i) for i, value in enumerate(values)], np.int64)
    numbers = np.empty(len(values))
    for i, value in enumerate(values):
        try:
            numbers[i] = float(value)
        except (TypeError, ValueError):
            raise DataUnusable(f"row {i + 1}: time {value!r} is no number, as that of the first row is") from None
    if not np.isfinite(numbers).all():
        raise DataUnusable(f"row {int(np.flatnonzero(~np.isfinite(numbers))[0]) + 1}: the time is not finite")
    if unit == "auto":
        largest = float(np.abs(numbers).max())
        unit = "s" if largest < 1e11 else "ms" if largest < 1e14 else "us" if largest < 1e17 else "ns"
    return np.rint(numbers / _PER_MS[unit]).astype(np.int64)


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def _iso(value: Any, row: int) -> int:
    try:
        moment = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
    except ValueError:
        raise DataUnusable(f"row {row + 1}: time {value!r} is neither a number nor ISO 8601") from None
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
