"""The table structure of the Redis module from Python, through ctypes: for tests and benchmarks."""

from __future__ import annotations

import ctypes as c
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from native.redis_module.compiler import CORE, build_library
from native.rows import HEADER

HERE = Path(__file__).parent
KINDS = ("add", "sgd", "adagrad", "rowwise_adagrad", "adam")
OK, NO_MEMORY, BAD_SPEC, BAD_BATCH = range(4)
Array = npt.NDArray[np.generic]


class Allocator(c.Structure):
    _fields_ = (("take", c.c_void_p), ("give", c.c_void_p), ("context", c.c_void_p), ("held", c.c_size_t))


class Counting(c.Structure):
    _fields_ = tuple((name, c.c_int64) for name in ("left", "taken", "failed", "held", "most_held", "fast"))


class Optimizer(c.Structure):
    _fields_ = (
        ("kind", c.c_int32), ("initial_accumulator", c.c_float),
        *((name, c.c_double) for name in ("beta_1", "beta_2", "epsilon", "clip_norm")),
    )  # fmt: skip


class Initial(c.Structure):
    _fields_ = (("salt", c.c_uint64), ("scale", c.c_double))


class Spec(c.Structure):
    _fields_ = (
        ("dim", c.c_uint32), ("unused", c.c_uint32), ("seed", c.c_uint64),
        *((name, c.c_double) for name in ("initial_std", "gap_rate", "half_life")),
        ("optimizer", Optimizer), ("salt", c.c_uint64),
    )  # fmt: skip


class Batch(c.Structure):
    _fields_ = (
        ("n", c.c_int64),
        *((name, c.c_void_p) for name in ("keys", "gradients", "counts", "positives", "checks", "id_bounds", "ids")),
        ("ids_size", c.c_int64), ("clock", c.c_int64), ("now_ms", c.c_int64), ("rate", c.c_double),
    )  # fmt: skip


class Reply(c.Structure):
    _fields_ = tuple((name, c.c_int64) for name in ("created", "touched", "refused", "wrong"))


def load(folder: Path, *flags: str) -> c.CDLL:
    """Compiled into `folder` and loaded."""
    sources = [*CORE, HERE / "counting.c", HERE / "sizes.c"]
    library = c.CDLL(str(build_library(folder / "table.so", sources, f"-I{HERE}", *flags)))
    library.table_check.restype = c.c_char_p
    library.table_oldest.restype = library.table_forget.restype = c.c_int64
    library.table_oldest.argtypes = library.table_forget.argtypes = [c.c_void_p, c.c_int64, c.c_void_p]
    library.table_id.restype = c.c_void_p
    library.table_id.argtypes = [c.c_void_p, c.c_uint64]
    library.table_lookup.argtypes = [c.c_void_p, c.c_int64, *[c.c_void_p] * 5]
    library.mix_shard.restype = c.c_uint32
    library.mix_shard.argtypes = [c.c_uint64, c.c_uint32]
    library.initial_of.restype = Initial
    library.initial_of.argtypes = [c.c_uint64, c.c_double]
    library.initial_fill.argtypes = [c.c_void_p, c.c_uint64, c.c_uint32, c.c_void_p]
    library.optimizer_step.argtypes = [c.c_void_p, c.c_double, c.c_void_p, c.c_void_p, c.c_uint32, c.c_void_p]
    library.table_splits.restype = library.table_bytes.restype = c.c_uint64
    return library


def optimizer(kind: str, clip_norm: float = 0.0) -> Optimizer:
    return Optimizer(KINDS.index(kind), 0.1, 0.9, 0.999, 1e-7, clip_norm)


def state_dim(kind: str, dim: int) -> int:
    return {"add": 0, "sgd": 0, "adagrad": dim, "rowwise_adagrad": 1, "adam": 2 * dim + 1}[kind]


class NoMemory(MemoryError):
    """The allocator said no; the table is as it was."""


class Refused(ValueError):
    """A spec or batch was refused."""


@dataclass
class Read:
    vectors: npt.NDArray[np.float32]
    state: npt.NDArray[np.float32]
    found: npt.NDArray[np.bool_]
    records: npt.NDArray[np.void]


@dataclass
class Table:
    """A table with a counting allocator. Close it: that memory is given back is part of every test."""

    library: c.CDLL
    dim: int
    kind: str = "sgd"
    seed: int = 7
    initial_std: float = 0.1
    clip_norm: float = 0.0
    gap_rate: float = 0.05
    half_life: float = 1000.0
    salt: int = 0x1234567
    left: int = -1
    fast: bool = False
    allocator: Allocator = field(default_factory=Allocator)
    counting: Counting = field(default_factory=Counting)

    def __post_init__(self) -> None:
        self.state_dim = state_dim(self.kind, self.dim)
        self.library.counting_open(c.byref(self.allocator), c.byref(self.counting))
        self.counting.left, self.counting.fast = self.left, self.fast
        self.memory = c.create_string_buffer(self.library.table_bytes() + 64)
        self.table = c.c_void_p(c.addressof(self.memory) + -c.addressof(self.memory) % 64)
        spec = Spec(
            self.dim, 0, self.seed, self.initial_std, self.gap_rate, self.half_life,
            optimizer(self.kind, self.clip_norm), self.salt,
        )  # fmt: skip
        _raise(self.library.table_open(self.table, c.byref(spec), c.byref(self.allocator)))

    def close(self) -> None:
        self.library.table_close(self.table)
        assert self.allocator.held == self.counting.held == 0

    @property
    def held(self) -> int:
        assert self.allocator.held == self.counting.held
        return int(self.counting.held)

    @property
    def splits(self) -> int:
        return int(self.library.table_splits(self.table))

    def lookup(self, keys: npt.NDArray[np.uint64]) -> Read:
        return self.prepared_lookup(keys)()

    def prepared_lookup(self, keys: npt.NDArray[np.uint64], *, plain: bool = False) -> Callable[[], Read]:
        """The lookup itself, apart from what Python does around it; each call overwrites the last one's answer.

        plain: vectors and found only.
        """
        n = len(keys)
        read = Read(
            np.empty((n, self.dim), np.float32), np.empty((n, self.state_dim), np.float32), np.empty(n, np.bool_),
            np.empty(n, HEADER),
        )  # fmt: skip
        state, records = (None, None) if plain else (_at(read.state), _at(read.records))
        call = partial(
            self.library.table_lookup, self.table, n, _at(keys), _at(read.vectors), state, _at(read.found), records
        )

        def lookup(_kept: object = keys) -> Read:
            _raise(call())
            return read

        return lookup

    def apply(self, *args: Any, **options: Any) -> Reply:
        """See `prepared`."""
        return self.prepared(*args, **options)()

    def prepared(
        self,
        keys: npt.NDArray[np.uint64],
        gradients: npt.NDArray[np.float32] | None = None,
        *,
        counts: npt.NDArray[np.int64] | None = None,
        positives: npt.NDArray[np.float32] | None = None,
        checks: npt.NDArray[np.uint32] | None = None,
        ids: list[bytes] | None = None,
        clock: int = 0,
        now_ms: int = 0,
        rate: float = 0.05,
        **changed: object,
    ) -> Callable[[], Reply]:
        """The apply of a batch, apart from what Python does around it.

        `changed` fields of the batch (`raw_n`, `raw_counts`, …) are set last, right or wrong.
        """
        n = len(keys)
        ids = [b""] * n if ids is None else ids
        bounds = np.concatenate([[0], np.cumsum(list(map(len, ids)), dtype=np.int64)]).astype(np.int64)
        data = np.frombuffer(b"".join(ids), np.uint8)
        counts = np.zeros(n, np.int64) if counts is None else counts
        positives = np.zeros(n, np.float32) if positives is None else positives
        checks = np.zeros(n, np.uint32) if checks is None else checks
        arrays = (keys, gradients, counts, positives, checks, bounds, data)
        batch = Batch(n, *(None if a is None else _at(a) for a in arrays), len(data), clock, now_ms, rate)
        for name, value in changed.items():
            setattr(batch, name.removeprefix("raw_"), _at(value) if isinstance(value, np.ndarray) else value)
        reply = Reply()
        call = partial(self.library.table_apply, self.table, c.byref(batch), c.byref(reply))

        def apply(_kept: object = (arrays, batch, changed)) -> Reply:
            _raise(call(), reply.wrong)
            return reply

        return apply

    def forget(self, keys: npt.NDArray[np.uint64]) -> int:
        return int(self.library.table_forget(self.table, len(keys), _at(keys)))

    def oldest(self, most: int = 1 << 40) -> npt.NDArray[np.uint64]:
        out = np.empty(min(most, self.rows), np.uint64)
        return out[: self.library.table_oldest(self.table, len(out), _at(out))]

    @property
    def rows(self) -> int:
        self.library.table_rows.restype = c.c_uint64
        return int(self.library.table_rows(self.table))

    def id_of(self, key: int) -> bytes | None:
        at = self.library.table_id(self.table, int(key))
        return c.string_at(at + 2, c.c_uint16.from_address(at).value) if at else None

    def check(self) -> None:
        wrong = self.library.table_check(self.table)
        assert wrong is None, wrong.decode()


def _at(array: Array) -> int:
    assert array.flags.c_contiguous
    return int(array.ctypes.data)


def _raise(status: int, wrong: int = -1) -> None:
    if status == NO_MEMORY:
        raise NoMemory
    if status != OK:
        raise Refused("spec" if status == BAD_SPEC else f"batch: {wrong}")
