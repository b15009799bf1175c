"""The bytes of a TOW.APPLY, column by column, right or wrong: for tests."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

GRADIENTS, DELTAS, STATE, OWN, CHECKS, UNPLACED = 1, 2, 4, 8, 16, 32
PLACE_NONE = -(2**63)
PLACE = np.dtype([("time_ms", "<i8"), ("place", "<i8"), ("partition", "<u4")])
ENTRY = np.dtype([("time_ms", "<i8"), ("place", "<i8"), ("item", "<u8"), ("partition", "<u4"), ("weight", "<f4")])
HEAD = struct.Struct("<II5q6I3Q2IQ")
HEAD_NAMES = (
    "version", "flags", "generation", "events", "event_time_ms", "produced_ms", "now_ms",
    "ranges", "keys", "appends", "values", "own", "forgets",
    "sources_size", "ids_size", "values_size", "dim", "state_dim", "unused",
)  # fmt: skip
Places = list[tuple[int, int, int]]


@dataclass
class Blob:
    """A call; `head` overrides what the columns say of themselves, `lengths` what they say of ids, sources, values."""

    ranges: list[tuple[bytes, int, int]] = field(default_factory=lambda: [(b"t:0", 0, 10)])
    keys: list[int] = field(default_factory=list)
    counts: list[int] | None = None
    positives: list[float] | None = None
    checks: list[int] | None = None
    ids: list[bytes] | None = None
    gradients: npt.NDArray[np.float32] | None = None
    state: npt.NDArray[np.float32] | None = None
    deltas: bool = False
    appends: list[tuple[int, tuple[int, int, int, int, float]]] = field(default_factory=list)
    values: list[tuple[int, tuple[int, int, int], bytes]] = field(default_factory=list)
    own: list[tuple[int, tuple[int, int, int], float]] | None = None
    forgets: list[tuple[int, tuple[int, int, int]]] = field(default_factory=list)
    forget_checks: list[int] | None = None
    generation: int = 0
    events: int = 10
    event_time_ms: int = 1000
    produced_ms: int = 2000
    now_ms: int = 3000
    dim: int = 0
    state_dim: int = 0
    head: dict[str, int] = field(default_factory=dict)
    lengths: dict[str, list[int]] = field(default_factory=dict)

    def bytes(self) -> bytes:
        n = len(self.keys)
        ids = self.ids or [b""] * n
        sources = [source for source, _, _ in self.ranges]
        values = [value for _, _, value in self.values]
        flags = (
            GRADIENTS * (self.gradients is not None) | DELTAS * self.deltas | STATE * (self.state is not None)
            | OWN * (self.own is not None) | CHECKS * (self.forget_checks is not None)
        )  # fmt: skip
        own = self.own or []
        numbers = {
            "version": 2, "flags": flags, "generation": self.generation, "events": self.events,
            "event_time_ms": self.event_time_ms, "produced_ms": self.produced_ms, "now_ms": self.now_ms,
            "ranges": len(self.ranges), "keys": n, "appends": len(self.appends), "values": len(values),
            "own": len(own), "forgets": len(self.forgets), "sources_size": sum(map(len, sources)),
            "ids_size": sum(map(len, ids)), "values_size": sum(map(len, values)), "dim": self.dim,
            "state_dim": self.state_dim, "unused": 0,
        } | self.head  # fmt: skip
        columns: list[Any] = [
            np.array([start for _, start, _ in self.ranges], "<i8"),
            np.array([stop for _, _, stop in self.ranges], "<i8"),
            np.array(self.lengths.get("sources", list(map(len, sources))), "<u2"), b"".join(sources),
            np.array(self.keys, "<u8"),
            np.array(self.counts or [0] * n, "<i8"),
            np.array(self.positives or [0] * n, "<f4"),
            np.array(self.checks or [0] * n, "<u4"),
            np.array(self.lengths.get("ids", list(map(len, ids))), "<u2"), b"".join(ids),
            b"" if self.gradients is None else np.ascontiguousarray(self.gradients, "<f4"),
            b"" if self.state is None else np.ascontiguousarray(self.state, "<f4"),
            np.array([row for row, _ in self.appends], "<u4"), np.array([e for _, e in self.appends], ENTRY),
            np.array([row for row, _, _ in self.values], "<u4"), np.array([p for _, p, _ in self.values], PLACE),
            np.array(self.lengths.get("values", list(map(len, values))), "<u4"), b"".join(values),
            np.array([row for row, _, _ in own], "<u4"), np.array([p for _, p, _ in own], PLACE),
            np.array([p for _, _, p in own], "<f4"),
            np.array([row for row, _ in self.forgets], "<u4"), np.array([p for _, p in self.forgets], PLACE),
            np.array(self.forget_checks or [], "<u4"),
        ]  # fmt: skip
        head = HEAD.pack(*(numbers[name] for name in HEAD_NAMES))
        return head + b"".join(c if isinstance(c, bytes) else c.tobytes() for c in columns)


def full() -> Blob:
    """A call with something in every column, of a table of dim 3 and state_dim 2."""
    return Blob(
        ranges=[(b"topic:1", 5, 9), (b"topic:0", 0, 3), (b"another:0", 1, 2)],
        keys=[11, 22, 33, 44], counts=[2, 0, 1, 0], positives=[1.5, 0, 0.5, 0], checks=[1, 2, 3, 4],
        ids=[b"eleven", b"", b"x" * 512, b"44"],
        gradients=np.arange(12, dtype=np.float32).reshape(4, 3), state=np.ones((4, 2), np.float32), deltas=True,
        appends=[(0, (7, 65536, 99, 1, 1.0)), (3, (8, 0, 98, 0, -0.5))],
        values=[(1, (5, 6, 0), b"value"), (1, (5, 7, 0), b""), (2, (1, 1, 1), b"v" * 300)],
        own=[(0, (7, 65536, 1), 1.0), (0, (7, 65537, 1), 0.5), (2, (9, 1, 0), 0.5)],
        forgets=[(3, (100, 5, 1)), (0, (PLACE_NONE, 0, 0))], forget_checks=[4, 1],
        events=8, dim=3, state_dim=2,
    )  # fmt: skip
