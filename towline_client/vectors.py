"""Vectors as float32: NumPy arrays where NumPy is installed, else `array.array('f')`."""

from __future__ import annotations

import base64
import importlib.util
import sys
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias, cast

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Vector: TypeAlias = npt.NDArray[np.float32] | array[float]

_HAS_NUMPY = importlib.util.find_spec("numpy") is not None


def from_numbers(numbers: Sequence[float]) -> Vector:
    """(n,) from JSON numbers."""
    return _wrapped(array("f", numbers))


def from_base64(text: str) -> Vector:
    """(n,) from base64 of little-endian float32."""
    values = array("f")
    values.frombytes(base64.b64decode(text))
    if sys.byteorder == "big":
        values.byteswap()
    return _wrapped(values)


def _wrapped(values: array[float]) -> Vector:
    if not _HAS_NUMPY:
        return values
    import numpy as np  # noqa: PLC0415  only where it is installed

    return cast("npt.NDArray[np.float32]", np.frombuffer(values, np.float32) if values else np.zeros(0, np.float32))
