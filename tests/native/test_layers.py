"""What lies between a layer's products against NumPy."""

import numpy as np
import pytest

from native.layers import add_bias, add_columns, rectified_gradients


def drawn(n, width):
    rng = np.random.default_rng(n + width)
    return rng.normal(size=(n, width)).astype(np.float32), rng.normal(size=width).astype(np.float32)


@pytest.mark.parametrize(("n", "width"), [(0, 3), (1, 1), (7, 33), (130, 64)])
@pytest.mark.parametrize("rectified", [True, False])
def test_bias_is_added_and_what_is_below_zero_cut(n, width, rectified):
    values, bias = drawn(n, width)
    bias.flags.writeable = False
    want = np.maximum(values + bias, 0) if rectified else values + bias
    add_bias(values, bias, rectified)
    np.testing.assert_array_equal(values, want)


def test_nan_stays_nan():
    values = np.array([[np.nan, -np.inf, np.inf]], np.float32)
    add_bias(values, np.ones(3, np.float32), True)
    np.testing.assert_array_equal(values, np.array([[np.nan, 0, np.inf]], np.float32))


@pytest.mark.parametrize(("n", "width"), [(0, 3), (1, 1), (7, 33), (130, 64)])
def test_gradients_are_those_of_what_is_above_zero(n, width):
    outputs, columns = drawn(n, width)
    outputs[outputs < 0.1] = 0.0
    outputs.flags.writeable = False
    gradients, _ = drawn(n, width)
    want, sums = np.where(outputs > 0, gradients, 0), columns + gradients.sum(axis=0, dtype=np.float64)
    add_columns(gradients, columns)
    np.testing.assert_allclose(columns, sums, rtol=1e-4, atol=1e-5)
    rectified_gradients(outputs, gradients)
    np.testing.assert_array_equal(gradients, want)
