"""What one shard gets of a flush, as the bytes of native/redis_module/core/flush.h. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from embedding_store.contract import F32, Flush
from embedding_store.errors import BadRequest
from embedding_store.flush_parts import Part
from embedding_store.records import U8
from embedding_store.spec import TableSpec

VERSION = 2
GRADIENTS, DELTAS, STATE, OWN, CHECKS, UNPLACED = 1, 2, 4, 8, 16, 32
"""Flags of a head."""

MAX_ROWS = 1 << 20
"""Keys of a blob, and likewise appends, values, own events and forgets."""

MAX_BYTES = 512 << 20
"""Of a blob: the default of the server's proto-max-bulk-len."""

MAX_RANGES = 65_536
MAX_SOURCE = 600
"""Bytes of a source's name."""

HEAD = np.dtype(
    [
        ("version", "<u4"),
        ("flags", "<u4"),
        ("generation", "<i8"),
        ("events", "<i8"),
        ("event_time_ms", "<i8"),
        ("produced_ms", "<i8"),
        ("now_ms", "<i8"),
        ("ranges", "<u4"),
        ("keys", "<u4"),
        ("appends", "<u4"),
        ("values", "<u4"),
        ("own", "<u4"),
        ("forgets", "<u4"),
        ("sources_size", "<u8"),
        ("ids_size", "<u8"),
        ("values_size", "<u8"),
        ("dim", "<u4"),
        ("state_dim", "<u4"),
        ("unused", "<u8"),
    ]
)
"""112 bytes."""

Column = npt.NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class _Moves:
    """Rows of a matrix of the flush, which are gathered where they are sent from."""

    of: F32  # (rows of the flush, width)
    rows: npt.NDArray[np.int64]  # ascending; those beyond `of` are zeros

    @property
    def nbytes(self) -> int:
        return len(self.rows) * int(self.of.shape[1]) * 4

    def write(self, out: U8) -> None:
        width = self.of.shape[1] * self.of.itemsize
        if not width:
            return
        known = int(np.searchsorted(self.rows, len(self.of)))
        matrix = out.reshape(len(self.rows), width)
        source = np.ascontiguousarray(self.of).view(np.uint8)
        if known and self.rows[known - 1] == known - 1:  # all from the first on: a table of one shard
            matrix[:known] = source[:known]
        else:
            np.take(source, self.rows[:known], axis=0, out=matrix[:known], mode="clip")  # "raise" would copy once more
        matrix[known:] = 0


class FlushBlob:
    """One shard's part of a flush, to be written once into the buffer that is sent."""

    def __init__(self, spec: TableSpec, flush: Flush, part: Part) -> None:
        """part: of the flush, its gradients left out. Raises BadRequest for what no blob holds.

        Where the flush knows places of own events and the part was cut without, the shard asks for them if it must.
        """
        sources = [str(r.source).encode() for r in flush.ranges]
        own = part.own_events
        _few(spec, "ranges", len(flush.ranges), MAX_RANGES)
        for name, n in (
            ("keys", len(part.keys)),
            ("appends", len(part.append_rows)),
            ("values", len(part.value_rows)),
            ("own events", 0 if own is None else len(own.rows)),
            ("forgets", len(part.forget_rows)),
        ):
            _few(spec, name, n, MAX_ROWS)
        for source in sources:
            if len(source) > MAX_SOURCE:
                raise BadRequest(
                    f"table '{spec.name}': the name of a source has {len(source)} bytes; at most {MAX_SOURCE} are kept"
                )
        flags = (
            GRADIENTS * (flush.gradients is not None)
            + DELTAS * (flush.mode == "deltas")
            + STATE * (flush.state_deltas is not None)
            + OWN * (own is not None)
            + CHECKS * (part.forget_checks is not None)
            + UNPLACED * (flush.own_events is not None and own is None)
        )
        ids, values = part.ids, part.values
        head = np.zeros(1, HEAD)
        self._columns: list[Column | _Moves] = [
            head,
            np.array([r.start for r in flush.ranges], np.int64),
            np.array([r.stop for r in flush.ranges], np.int64),
            np.array([len(source) for source in sources], np.uint16),
            np.frombuffer(b"".join(sources), np.uint8),
            part.keys,
            part.counts,
            part.positives,
            part.checks,
            ids.lengths.astype(np.uint16),
            ids.data[ids.offsets[0] : ids.offsets[-1]],
            *_moves(flush, part),
            part.append_rows.astype(np.uint32),
            part.appends,
            part.value_rows.astype(np.uint32),
            part.value_orders,
            values.lengths.astype(np.uint32),
            values.data[values.offsets[0] : values.offsets[-1]],
        ]
        if own is not None:
            self._columns += [own.rows.astype(np.uint32), own.orders, own.positives]
        self._columns += [part.forget_rows.astype(np.uint32), part.forget_orders]
        if part.forget_checks is not None:
            self._columns.append(part.forget_checks)
        head[0] = (
            VERSION, flags, flush.generation, flush.events, flush.event_time_ms, flush.produced_ms, flush.now_ms,
            len(flush.ranges), len(part.keys), len(part.append_rows), len(part.value_rows),
            0 if own is None else len(own.rows), len(part.forget_rows),
            sum(map(len, sources)), ids.offsets[-1] - ids.offsets[0], values.offsets[-1] - values.offsets[0],
            spec.dim, spec.state_dim, 0,
        )  # fmt: skip
        self.size = sum(column.nbytes for column in self._columns)
        if self.size > MAX_BYTES:
            raise BadRequest(
                f"table '{spec.name}': {self.size} bytes for one shard in one call; at most {MAX_BYTES}, make several "
                "calls"
            )

    def write(self, out: U8) -> None:
        """Into `size` bytes."""
        at = 0
        for column in self._columns:
            here = out[at : at + column.nbytes]
            at += column.nbytes
            if isinstance(column, _Moves):
                column.write(here)
            elif column.nbytes:
                here[:] = np.ascontiguousarray(column).reshape(-1).view(np.uint8)


def _moves(flush: Flush, part: Part) -> Iterator[_Moves]:
    for matrix in (flush.gradients, flush.state_deltas):
        if matrix is not None:
            yield _Moves(matrix, part.rows)


def _few(spec: TableSpec, name: str, n: int, most: int) -> None:
    if n > most:
        raise BadRequest(
            f"table '{spec.name}': {n} {name} of one shard in one call; at most {most}, make several calls"
        )
