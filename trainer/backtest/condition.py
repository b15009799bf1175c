"""`--positive-if 'label >= 4'`: one comparison of the label column with a constant."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from trainer.backtest.errors import DataUnusable

_SIGNS: dict[str, Callable[[Any, Any], Any]] = {
    ">=": operator.ge, "<=": operator.le, "==": operator.eq, "!=": operator.ne, ">": operator.gt, "<": operator.lt,
}  # fmt: skip
_FORM = re.compile(r"\s*(?:\w+)\s*(>=|<=|==|!=|>|<)\s*(.+?)\s*$")


@dataclass(frozen=True, slots=True)
class Condition:
    """label `sign` value; numbers compare as numbers, with == and != also texts."""

    sign: str
    value: float | str

    @classmethod
    def parse(cls, text: str) -> Condition:
        """From text. Raises DataUnusable."""
        match = _FORM.match(text)
        if match is None:
            raise DataUnusable(f"positive-if {text!r} is not a comparison: write it like 'label >= 4'")
        sign, constant = match[1], match[2].strip("'\"")
        try:
            return cls(sign, float(constant))
        except ValueError:
            if sign in ("==", "!="):
                return cls(sign, constant)
            raise DataUnusable(f"positive-if {text!r}: {constant!r} is no number, and texts have no order") from None

    def of(self, labels: list[Any]) -> npt.NDArray[np.bool_]:
        """(n,) whether each label fulfils it. Raises DataUnusable, with the row, for a label that is no number."""
        if isinstance(self.value, str):
            found = np.array([str(label) == self.value for label in labels], np.bool_)
            return found if self.sign == "==" else ~found
        numbers = np.empty(len(labels))
        for i, label in enumerate(labels):
            try:
                numbers[i] = float(label)
            except (TypeError, ValueError):
                raise DataUnusable(f"row {i + 1}: label {label!r} is no number") from None
        return np.asarray(_SIGNS[self.sign](numbers, self.value), np.bool_)
