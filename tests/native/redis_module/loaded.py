"""The core of the Redis module from Python, through ctypes."""

from __future__ import annotations

import ctypes as c
from pathlib import Path

from native.redis_module.compiler import CORE, build_library

HERE = Path(__file__).parent
KINDS = ("add", "sgd", "adagrad", "rowwise_adagrad", "adam")


class Allocator(c.Structure):
    _fields_ = (
        ("take", c.c_void_p), ("give", c.c_void_p), ("context", c.c_void_p), ("held", c.c_size_t), ("huge", c.c_void_p),
    )  # fmt: skip


class Counting(c.Structure):
    _fields_ = tuple((name, c.c_int64) for name in ("left", "taken", "failed", "held", "most_held", "fast"))


class Optimizer(c.Structure):
    _fields_ = (
        ("kind", c.c_int32), ("initial_accumulator", c.c_float),
        *((name, c.c_double) for name in ("beta_1", "beta_2", "epsilon", "clip_norm")),
    )  # fmt: skip


class Initial(c.Structure):
    _fields_ = (("salt", c.c_uint64), ("scale", c.c_double))


def load(folder: Path, *flags: str) -> c.CDLL:
    """The core and the harness of shards, compiled into `folder` and loaded."""
    sources = [*CORE, HERE / "counting.c", HERE / "harness.c"]
    library = c.CDLL(str(build_library(folder / "core.so", sources, f"-I{HERE}", *flags)))
    library.mix_shard.restype = c.c_uint32
    library.mix_shard.argtypes = [c.c_uint64, c.c_uint32]
    library.initial_of.restype = Initial
    library.initial_of.argtypes = [c.c_uint64, c.c_double]
    library.initial_fill.argtypes = [c.c_void_p, c.c_uint64, c.c_uint32, c.c_void_p]
    library.optimizer_step.argtypes = [c.c_void_p, c.c_double, c.c_void_p, c.c_void_p, c.c_uint32, c.c_void_p]
    return library


def optimizer(kind: str, clip_norm: float = 0.0) -> Optimizer:
    return Optimizer(KINDS.index(kind), 0.1, 0.9, 0.999, 1e-7, clip_norm)


def state_dim(kind: str, dim: int) -> int:
    return {"add": 0, "sgd": 0, "adagrad": dim, "rowwise_adagrad": 1, "adam": 2 * dim + 1}[kind]
