"""The same work as bytes for each server: floor, module, stock. Pure."""

from __future__ import annotations

import numpy as np

from benchmarks.store.data import flush_of, keys_of
from benchmarks.store.exchange import Request
from embedding_store.contract import F32, I64
from embedding_store.flush_parts import parts_of
from embedding_store.module_store.flush_blob import HEAD, FlushBlob
from embedding_store.module_store.lookups import lookups
from embedding_store.module_store.rows_blob import HEAD as ROWS_HEAD
from embedding_store.module_store.rows_blob import WITHOUT_IDS
from embedding_store.redis_store.keys import module_key
from embedding_store.redis_store.resp import framed
from embedding_store.spec import TableSpec
from embedding_store.validation import checked_flush
from native.rows import HEADER_BYTES

APPLIED = b"*3\r\n:0\r\n"
PLAIN = b"plain:"


def floor_lookup(rows: I64, dim: int) -> Request:
    """Row numbers are its keys."""
    head = np.array([ord("L"), len(rows)], np.uint32)
    return Request(head.tobytes() + rows.astype(np.uint64).tobytes(), len(rows) * dim * 4)


def floor_apply(rows: I64, gradients: F32) -> Request:
    """Likewise."""
    head = np.array([ord("A"), len(rows)], np.uint32)
    return Request(head.tobytes() + rows.astype(np.uint64).tobytes() + gradients.tobytes())


def bulk_bytes(size: int) -> int:
    """Of a string of `size` bytes in a reply."""
    return len(b"$%d\r\n" % size) + size + 2


def module_lookup(spec: TableSpec, rows: I64) -> Request:
    """Vectors, records and standings, as the trainer asks for them, who knows the ids; a table of one shard."""
    (command,) = lookups(spec, 0, keys_of(rows), WITHOUT_IDS)
    row = HEADER_BYTES + 4 * spec.dim + 1
    return Request(command, bulk_bytes(ROWS_HEAD.size + len(rows) * row))


class ModuleApply:
    """A flush as the trainer sends it, to be sent again and again: each time of the next records of its source."""

    def __init__(self, spec: TableSpec, rows: I64, gradients: F32) -> None:
        flush = checked_flush(spec, flush_of(rows, gradients, 0, len(rows)))
        (part,) = parts_of(spec, flush, gradients=False, own=False)  # as the client sends it
        blob = FlushBlob(spec, flush, part)
        command, out = framed(["TOW.APPLY", module_key(spec.name, 0)], blob.size)
        blob.write(out)
        self._range = out[HEAD.itemsize : HEAD.itemsize + 16].view(np.int64)  # its start and its stop
        self._events = len(rows)
        self._request = Request(command.data)

    def at(self, offset: int) -> tuple[Request, int]:
        """(the call that begins at a record offset, where the next one does)."""
        stop = offset + self._events
        self._range[:] = offset, stop
        return self._request, stop


def plain_names(rows: I64) -> list[bytes]:
    """Keys of strings."""
    return [PLAIN + key.to_bytes(8, "little") for key in keys_of(rows).tolist()]


def stock_lookup(rows: I64, value_bytes: int) -> Request:
    """MGET."""
    names = plain_names(rows)
    return Request(command([b"MGET", *names]), len(b"*%d\r\n" % len(names)) + len(names) * bulk_bytes(value_bytes))


def stock_apply(rows: I64, values: F32) -> Request:
    """MSET of new values, which a client would have computed."""
    words = [b"MSET"]
    for name, value in zip(plain_names(rows), values, strict=True):
        words += [name, value.tobytes()]
    return Request(command(words))


def command(words: list[bytes]) -> bytes:
    """As RESP."""
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)
