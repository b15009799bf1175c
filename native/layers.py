"""What lies between the matrix products of a dense layer: bias and ReLU, and their gradients, one pass over each."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

F32 = npt.NDArray[np.float32]

_ZERO = np.float32(0.0)


@njit(cache=True, nogil=True)
def add_bias(values: F32, bias: F32, rectified: bool) -> None:
    """values (n, outputs) become values + bias (outputs,), or max(0, that) if `rectified`; NaN stays NaN."""
    for i in range(len(values)):
        for j in range(values.shape[1]):
            value = values[i, j] + bias[j]
            values[i, j] = _ZERO if rectified and value < _ZERO else value


@njit(cache=True, nogil=True)
def rectified_gradients(outputs: F32, gradients: F32) -> None:
    """gradients (n, outputs) behind a ReLU become those before it: 0 where outputs (n, outputs) are not above 0."""
    for i in range(len(outputs)):
        for j in range(outputs.shape[1]):
            gradients[i, j] = gradients[i, j] if outputs[i, j] > _ZERO else _ZERO


@njit(cache=True, nogil=True)
def add_columns(values: F32, out: F32) -> None:
    """out (outputs,) += the sum of each column of values (n, outputs)."""
    for i in range(len(values)):
        for j in range(values.shape[1]):
            out[j] += values[i, j]
