"""spec.c and flush.c from Python, through ctypes."""

from __future__ import annotations

import ctypes as c
import mmap
from pathlib import Path

from native.redis_module import compiler
from tests.native.redis_module.loaded import HERE, Allocator, Counting, Optimizer

SOURCES = tuple(compiler.FOLDERS[0] / name for name in ("fault.c", "spec.c", "flush.c"))


class Refused(ValueError):
    """The sentence that a caller reads."""


class Fault(c.Structure):
    _fields_ = (("text", c.c_char * 320),)

    def refuse(self) -> None:
        raise Refused(self.text.decode())


class Schedule(c.Structure):
    _fields_ = (
        ("kind", c.c_int32), ("warmup_steps", c.c_int64), ("learning_rate", c.c_double), ("decay", c.c_double),
        ("steps", c.c_int64), ("floor", c.c_double),
    )  # fmt: skip


class Spec(c.Structure):
    _fields_ = (
        ("kind", c.c_int32), ("dim", c.c_uint32), ("length", c.c_uint32), ("seed", c.c_uint64),
        ("initial_std", c.c_double), ("gap_rate", c.c_double),
        ("popularity_half_life", c.c_int64), ("step_events", c.c_int64),
        ("optimizer", Optimizer), ("schedule", Schedule), ("l1", c.c_double), ("l2", c.c_double),
        *((name, c.c_int64) for name in (
            "admit_after", "max_stubs", "max_rows", "ttl_ms", "remember_events", "evict_batch", "max_evicted",
            "max_forgotten")),
        ("declaration", c.c_void_p), ("declaration_size", c.c_size_t),
    )  # fmt: skip


PAIRS: dict[str, str] = {
    "declaration": '{"name": "item", "dim": 64}', "kind": "embedding", "dim": "64", "length": "0", "seed": "7",
    "initial_std": "0.1", "gap_rate": "0.05", "popularity_half_life": "1000", "step_events": "1000", "clip_norm": "0",
    "optimizer": "sgd", "learning_rate": "0.05", "initial_accumulator": "0.1", "beta_1": "0.9", "beta_2": "0.999",
    "epsilon": "1e-07", "schedule": "constant", "warmup_steps": "0", "decay": "0", "steps": "0", "floor": "0.01",
    "l1": "0", "l2": "0", "admit_after": "0", "max_stubs": "1000000", "max_rows": "0", "ttl_ms": "0",
    "remember_events": "100000000", "evict_batch": "64", "max_evicted": "131072", "max_forgotten": "1048576",
}  # fmt: skip
"""A declaration that is good."""

EACH = c.CFUNCTYPE(None, c.c_void_p, c.c_char_p, c.POINTER(c.c_char), c.c_size_t)


class Parsers:
    """The two parsers, with a counting allocator."""

    def __init__(self, folder: Path) -> None:
        self.library = c.CDLL(
            str(compiler.build_library(folder / "parsers.so", [*SOURCES, HERE / "counting.c"], f"-I{HERE}"))
        )
        for name in ("spec_parse", "spec_same", "flush_parse"):
            getattr(self.library, name).restype = c.c_bool
        self.library.spec_each.argtypes = [c.c_void_p, EACH, c.c_void_p]
        self.library.flush_parse.argtypes = [
            c.c_void_p, c.c_void_p, c.c_size_t, c.c_uint32, c.c_uint32, c.c_void_p
        ]  # fmt: skip
        self.allocator, self.counting = Allocator(), Counting()
        self.library.counting_open(c.byref(self.allocator), c.byref(self.counting))

    def spec(self, pairs: list[tuple[bytes, bytes]]) -> Spec:
        """Raises Refused. Close it."""
        n = len(pairs)
        names, values = (c.c_char_p * n)(*(p[0] for p in pairs)), (c.c_char_p * n)(*(p[1] for p in pairs))
        lengths = [(c.c_size_t * n)(*(len(p[k]) for p in pairs)) for k in (0, 1)]
        spec, fault = Spec(), Fault()
        if not self.library.spec_parse(
            c.byref(spec), c.c_size_t(n), names, lengths[0], values, lengths[1], c.byref(self.allocator), c.byref(fault)
        ):
            fault.refuse()
        return spec

    def of(self, **changed: str) -> Spec:
        return self.spec([(name.encode(), value.encode()) for name, value in (PAIRS | changed).items()])

    def close(self, spec: Spec) -> None:
        self.library.spec_close(c.byref(spec), c.byref(self.allocator))

    def same(self, a: Spec, b: Spec) -> None:
        fault = Fault()
        if not self.library.spec_same(c.byref(a), c.byref(b), c.byref(fault)):
            fault.refuse()

    def pairs(self, spec: Spec) -> list[tuple[bytes, bytes]]:
        out: list[tuple[bytes, bytes]] = []

        def each(_: object, name: bytes, value: object, length: int) -> None:
            out.append((name, c.string_at(value, length)))  # type: ignore[arg-type]

        self.library.spec_each(c.byref(spec), EACH(each), None)
        return out

    def flush(self, blob: bytes, dim: int, state_dim: int) -> None:
        """Raises Refused. The blob ends where no memory is, so that reading past it ends the process."""
        self.pages = getattr(self, "pages", None) or Guarded(1 << 26)
        fault, out = Fault(), c.create_string_buffer(512)
        if not self.library.flush_parse(out, self.pages.put(blob), len(blob), dim, state_dim, c.byref(fault)):
            fault.refuse()


class Guarded:
    """Memory whose end is followed by a page that can't be read."""

    def __init__(self, size: int) -> None:
        self._map = mmap.mmap(-1, size + mmap.PAGESIZE)
        self._end = c.addressof(c.c_char.from_buffer(self._map)) + size
        if c.CDLL(None).mprotect(c.c_void_p(self._end), c.c_size_t(mmap.PAGESIZE), 0):
            raise OSError("mprotect")

    def put(self, data: bytes) -> int:
        c.memmove(self._end - len(data), data, len(data))
        return self._end - len(data)
