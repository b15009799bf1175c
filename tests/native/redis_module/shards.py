"""Tables of the module's core in this process, through ctypes: no server, a counting allocator."""

from __future__ import annotations

import ctypes as c
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from embedding_store.contract import Flush, Source
from embedding_store.declarations import to_json
from embedding_store.flush_parts import by_shard, parts_of
from embedding_store.module_store.declaration import declaration
from embedding_store.module_store.flush_blob import FlushBlob
from embedding_store.module_store.rows_blob import STORED, WITH_STATE, RowsReply, block_of, parse_rows
from embedding_store.records import Block
from embedding_store.spec import TableSpec
from embedding_store.standing import Standings
from embedding_store.validation import checked_flush
from tests.flushes import SOURCE
from tests.native.redis_module.loaded import Counting

U64 = npt.NDArray[np.uint64]
OUTCOMES = ("applied", "duplicate", "conflict")
META = (
    "generation", "clock", "event_time_ms", "produced_ms", "skipped", "seeks", "now_ms",
    "evicted", "expired", "forgotten", "late", "refused", "feed",
)  # fmt: skip


class Meta(c.Structure):
    _fields_ = tuple((name, c.c_int64) for name in META)


class Refused(ValueError):
    """What a caller of the command would read."""


def typed(library: c.CDLL) -> c.CDLL:
    """The library with the types of the harness's functions."""
    library.harness_open.restype = c.c_void_p
    library.harness_open.argtypes = [c.c_size_t, *[c.c_void_p] * 4, c.c_uint64, c.c_char_p]
    for name in ("close", "numbers", "scan", "changes"):
        getattr(library, f"harness_{name}").restype = c.c_int64
    library.harness_close.argtypes = [c.c_void_p]
    library.harness_numbers.argtypes = [c.c_void_p, c.c_int]
    library.harness_scan.argtypes = [c.c_void_p, c.c_void_p, c.c_int64, c.c_void_p]
    library.harness_changes.argtypes = [c.c_void_p, c.c_int64, c.c_void_p, c.c_int64]
    library.harness_apply.argtypes = [c.c_void_p, c.c_void_p, c.c_size_t]
    library.harness_fault.restype = library.harness_check.restype = c.c_char_p
    library.harness_fault.argtypes = library.harness_check.argtypes = [c.c_void_p]
    library.harness_counting.restype = c.POINTER(Counting)
    library.harness_meta.restype = c.POINTER(Meta)
    library.harness_counting.argtypes = library.harness_meta.argtypes = [c.c_void_p]
    library.harness_seek.restype = c.c_bool
    library.harness_seek.argtypes = [c.c_void_p, c.c_char_p, c.c_int64, c.c_int64]
    library.harness_rows.restype = c.c_size_t
    library.harness_rows.argtypes = [c.c_void_p, c.c_int64, c.c_void_p, c.c_uint32, c.c_void_p, c.c_size_t]
    return library


def blobs_of(spec: TableSpec, flush: Flush, *, own: bool = True) -> list[npt.NDArray[np.uint8]]:
    """One per shard. own False: places of own events stay behind."""
    blobs = []
    for part in parts_of(spec, checked_flush(spec, flush), gradients=False, own=own):
        blob = FlushBlob(spec, flush, part)
        blobs.append(np.empty(blob.size, np.uint8))
        blob.write(blobs[-1])
    return blobs


@dataclass
class Shards:
    """All shards of a table. Close it: that memory is given back is part of every test."""

    library: c.CDLL
    spec: TableSpec
    salt: int = 0x1234567
    handles: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        words = [str(w).encode() if not isinstance(w, bytes) else w for w in declaration(self.spec, to_json(self.spec))]
        names, values = words[::2], words[1::2]
        n = len(names)
        text = c.create_string_buffer(320)
        for _ in range(self.spec.shards):
            handle = self.library.harness_open(
                n, (c.c_char_p * n)(*names), (c.c_size_t * n)(*map(len, names)), (c.c_char_p * n)(*values),
                (c.c_size_t * n)(*map(len, values)), self.salt, text,
            )  # fmt: skip
            if not handle:
                raise Refused(text.value.decode())
            self.handles.append(handle)

    def begin(self, source: Source = SOURCE) -> Shards:
        for handle in self.handles:
            assert self.library.harness_seek(handle, str(source).encode(), -1, 0)
        return self

    def close(self) -> None:
        assert [self.library.harness_close(handle) for handle in self.handles] == [0] * len(self.handles)

    def apply_blob(self, shard: int, blob: npt.NDArray[np.uint8] | bytes) -> str:
        """Raises Refused."""
        data = np.frombuffer(blob, np.uint8)
        outcome = self.library.harness_apply(self.handles[shard], data.ctypes.data, len(data))
        if outcome < 0:
            raise Refused(self.library.harness_fault(self.handles[shard]).decode())
        return OUTCOMES[outcome]

    def apply(self, flush: Flush, *, own: bool = True) -> list[str]:
        """Raises Refused."""
        return [self.apply_blob(shard, blob) for shard, blob in enumerate(blobs_of(self.spec, flush, own=own))]

    def reply(self, shard: int, keys: U64, flags: int) -> RowsReply:
        handle, keys = self.handles[shard], np.ascontiguousarray(keys, np.uint64)
        size = self.library.harness_rows(handle, len(keys), keys.ctypes.data, flags, None, 0)
        out = np.empty(size + 8, np.uint64)[: -(-size // 8)].view(np.uint8)[:size]
        assert self.library.harness_rows(handle, len(keys), keys.ctypes.data, flags, out.ctypes.data, size) == size
        return parse_rows(self.spec, out, len(keys), flags)

    def read(self, keys: U64, *, with_state: bool = True, stored: bool = False) -> tuple[Block, Standings]:
        order, starts = by_shard(keys, self.spec.shards)
        flags = WITH_STATE * with_state + STORED * stored
        replies = [self.reply(s, keys[order][starts[s] : starts[s + 1]], flags) for s in range(self.spec.shards)]
        return block_of(self.spec, replies, order, with_state=with_state)

    def keys(self, most: int = 7) -> U64:
        """All with a row, by scans of `most` a call."""
        found: list[U64] = []
        for handle in self.handles:
            cursor = c.c_uint64(0)
            while True:
                out = np.empty(most, np.uint64)
                n = self.library.harness_scan(handle, c.byref(cursor), most, out.ctypes.data)
                found.append(out[:n])
                if not cursor.value:
                    break
        return np.sort(np.concatenate(found))

    def changes(self, shard: int, since: int) -> U64 | None:
        out = np.empty(1 << 20, np.uint64)
        n = self.library.harness_changes(self.handles[shard], since, out.ctypes.data, len(out))
        assert n != -2
        return None if n < 0 else out[:n]

    def meta(self, shard: int) -> dict[str, int]:
        meta = self.library.harness_meta(self.handles[shard]).contents
        numbers = {name: getattr(meta, name) for name in META}
        for which, name in enumerate(("rows", "stubs", "remembered", "memory")):
            numbers[name] = self.library.harness_numbers(self.handles[shard], which)
        return numbers

    def counting(self, shard: int = 0) -> Counting:
        return self.library.harness_counting(self.handles[shard]).contents

    def check(self) -> None:
        for handle in self.handles:
            assert self.library.harness_check(handle) is None
