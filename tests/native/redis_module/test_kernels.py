"""Mixer, initial vectors and optimizer steps in C give the bits of the numba kernels."""

import ctypes

import numpy as np
import pytest

from native import optimizers
from native.initial import fill_missing
from native.mixing import shard_of
from native.redis_module.compiler import FOLDERS, build_library
from tests.native.redis_module.loaded import KINDS, Initial, optimizer, state_dim

DIMS = pytest.mark.parametrize("dim", [1, 3, 7, 64, 129])


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """The kernels alone."""
    sources = [FOLDERS[0] / f"{name}.c" for name in ("initial", "mix", "optimizer", "row")]
    library = ctypes.CDLL(str(build_library(tmp_path_factory.mktemp("kernels") / "kernels.so", sources)))
    p, u32, u64, f64 = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_double
    library.mix_shard.restype, library.mix_shard.argtypes = u32, [u64, u32]
    library.initial_of.restype, library.initial_of.argtypes = Initial, [u64, f64]
    library.initial_fill.argtypes = [p, u64, u32, p]
    library.optimizer_step.argtypes = [p, f64, p, p, u32, p]
    library.optimizer_add.argtypes = [p, p, u32]
    return library


def test_shards_are_those_of_python(library):
    keys = np.random.default_rng(0).integers(0, 2**64, 500, np.uint64, endpoint=False)
    for shards in (1, 3, 4, 4096):
        assert [library.mix_shard(int(key), shards) for key in keys] == [shard_of(key, shards) for key in keys]


@DIMS
@pytest.mark.parametrize("std", [0.0, 0.1, 3.7])
def test_initial_vectors(library, dim, std):
    keys = np.array([0, 1, 2**63, 2**64 - 1, 12345], np.uint64)
    for seed in (0, 7, 2**63 - 1):
        want = np.empty((len(keys), dim), np.float32)
        fill_missing(seed, std, keys, np.zeros(len(keys), np.bool_), want)
        initial = library.initial_of(seed, std)
        got = np.empty_like(want)
        for i, key in enumerate(keys):
            library.initial_fill(ctypes.byref(initial), int(key), dim, got[i].ctypes.data)
        assert got.tobytes() == want.tobytes()


def numba_step(kind, w, s, g, rate):
    rate_32, epsilon = np.float32(rate), np.float32(1e-7)
    if kind == "add":
        optimizers.add(w, g)
    elif kind == "sgd":
        optimizers.sgd(w, g, rate_32)
    elif kind == "adagrad":
        optimizers.adagrad(w, s, g, rate_32, epsilon)
    elif kind == "rowwise_adagrad":
        optimizers.rowwise_adagrad(w, s, g, rate_32, epsilon)
    else:
        optimizers.adam(w, s, g, rate, 0.9, 0.999, 1e-7)


def module_step(library, kind, w, s, g, rate, clip_norm=0.0, at=0):
    """at: bytes by which the gradients are not aligned."""
    dim = w.shape[1]
    o, scratch, row = optimizer(kind, clip_norm), np.empty(dim, np.float32), np.empty(dim + s.shape[1], np.float32)
    blob = bytes(at) + g.tobytes()
    gradients = np.frombuffer(blob, np.uint8).ctypes.data + at
    for i in range(len(w)):
        row[:dim], row[dim:] = w[i], s[i]
        gradient = gradients + 4 * dim * i
        library.optimizer_step(ctypes.byref(o), rate, row.ctypes.data, gradient, dim, scratch.ctypes.data)
        w[i], s[i] = row[:dim], row[dim:]


def columns(kind, dim, n=200):
    rng = np.random.default_rng(dim)
    scales = 10.0 ** rng.integers(-20, 10, (n, 1))
    w, g = rng.normal(size=(2, n, dim)).astype(np.float32)
    g = (g * scales).astype(np.float32)
    g[::5] = 0
    g[1::50], g[2::50], g[3::50] = np.nan, np.inf, 1e-42
    s = (rng.random((n, state_dim(kind, dim))) * scales).astype(np.float32)
    if kind == "adam":
        s[:, -1] = rng.integers(0, 2000, n)
        s[7, -1] = 2.0**24
    return w, s, g


@DIMS
@pytest.mark.parametrize("kind", KINDS)
def test_steps(library, kind, dim):
    w, s, g = columns(kind, dim)
    w_c, s_c = w.copy(), s.copy()
    for at, rate in enumerate((0.05, 0.001, 1 / 3)):
        numba_step(kind, w, s, g, rate)
        module_step(library, kind, w_c, s_c, g, rate, at=at)
    np.testing.assert_array_equal(bits(w_c), bits(w))
    np.testing.assert_array_equal(bits(s_c), bits(s))


@DIMS
def test_clipping(library, dim):
    w, s, g = columns("sgd", dim)
    w_c, clipped = w.copy(), np.empty_like(g)
    optimizers.clip(g, 0.7, clipped)
    numba_step("sgd", w, s, clipped, 0.05)
    module_step(library, "sgd", w_c, s.copy(), g, 0.05, clip_norm=0.7, at=3)
    np.testing.assert_array_equal(bits(w_c), bits(w))


@DIMS
def test_deltas_at_any_address(library, dim):
    w, _, delta = columns("add", dim)
    want = w.copy()
    optimizers.add(want, delta)
    for at in range(4):
        got, blob = w.copy(), np.frombuffer(bytes(at) + delta.tobytes(), np.uint8)
        library.optimizer_add(got.ctypes.data, blob.ctypes.data + at, delta.size)
        np.testing.assert_array_equal(bits(got), bits(want))


def bits(array):
    """Bits, with every NaN the same one: its payload is the processor's choice."""
    return np.where(np.isnan(array), np.float32(np.nan), array).view(np.uint32)
