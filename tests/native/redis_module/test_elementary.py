"""exp, expm1, log1p and cos_pi in C give the bits of the numba kernels."""

import ctypes

import numpy as np
import pytest

from native import elementary
from native.redis_module.compiler import FOLDERS, build_library
from tests.native.redis_module.loaded import HERE
from tests.native.test_elementary import EDGES, spread

NAMES = ("exp", "expm1", "log1p", "cos_pi")


@pytest.fixture(scope="module")
def each(tmp_path_factory):
    sources = [FOLDERS[0] / "elementary.c", HERE / "elementary_each.c"]
    library = ctypes.CDLL(str(build_library(tmp_path_factory.mktemp("elementary") / "elementary.so", sources)))
    library.elementary_each.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p]
    return library.elementary_each


@pytest.mark.parametrize("name", NAMES)
def test_bits(each, name):
    """Of arguments over the whole range, beyond it, next to every edge, and of any bits whatever."""
    rng = np.random.default_rng(NAMES.index(name))
    anything = rng.integers(0, 2**64, 300_000, np.uint64, endpoint=False).view(np.float64)
    x = np.concatenate([spread(name, rng, 1_000_000), EDGES, np.abs(anything), -np.abs(anything)])
    want, got = np.empty_like(x), np.empty_like(x)
    getattr(elementary, f"{name}_each")(x, want)
    each(NAMES.index(name), len(x), x.ctypes.data, got.ctypes.data)
    same = (got.view(np.uint64) == want.view(np.uint64)) | (np.isnan(got) & np.isnan(want))
    assert same.all(), x[~same][:9]
