"""Columns under construction: one element per line, of which some turn out usable."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ingest.codecs.contract import Decoded, Records, Refusal
from ingest.columns import MAX_LINES, Events
from ingest.door import Fields
from native.hashing import frozen, keys_and_checks
from native.json_events import BLANK, UNSURE, USABLE, gather
from native.ragged import Ragged

U8 = npt.NDArray[np.uint8]
I64 = npt.NDArray[np.int64]


class Draft:
    """Room for n lines. The ids of lines filled by a kernel lie in `data`; those put one by one are kept aside."""

    def __init__(self, n: int, data: U8) -> None:
        self.n = n
        self.record = np.zeros(n, np.int64)
        self.line = np.zeros(n, np.int64)
        self.status = np.full(n, UNSURE, np.uint8)
        self.unknown = np.zeros(n, np.uint8)
        self.user = _id_columns(n)
        self.item = _id_columns(n)
        self.label = np.empty(n, np.float32)
        self.weight = np.empty(n, np.float32)
        self.time_ms = np.empty(n, np.int64)
        self._data = data
        self._put: dict[int, Fields] = {}

    def put(self, i: int, fields: Fields) -> None:
        """Line i holds that event; its record and line number are set by the caller."""
        self._put[i] = fields
        self.status[i] = USABLE

    def blank(self, lines: slice) -> None:
        """Those lines hold nothing after all."""
        self.status[lines] = BLANK
        for i in range(lines.start, lines.stop):
            self._put.pop(i, None)

    def finish(self, records: Records, refusals: list[Refusal]) -> Decoded:
        """The usable lines, in order. Copies: the record values may go."""
        extra = self._take_in()
        usable = self.status[: self.n] == USABLE
        rows: I64 | slice = slice(self.n) if usable.all() else np.flatnonzero(usable)
        record = self.record[rows]
        events = Events(
            partition=records.partition[record],
            place=records.offset[record] * MAX_LINES + self.line[rows],
            time_ms=self.time_ms[rows],
            produced_ms=np.maximum(records.produced_ms[record], 0),
            user_key=self.user[2][rows],
            user_check=self.user[3][rows],
            user_id=_ragged(self._data, extra, self.user[0][rows], self.user[1][rows]),
            item_key=self.item[2][rows],
            item_check=self.item[3][rows],
            item_id=_ragged(self._data, extra, self.item[0][rows], self.item[1][rows]),
            label=self.label[rows],
            weight=self.weight[rows],
        )
        refusals.sort(key=lambda refusal: refusal[:2])
        return Decoded(events, refusals, int(self.unknown[rows].sum()))

    def _take_in(self) -> U8:
        """Write the lines put one by one into the columns; returns their ids' bytes, to be laid behind `data`."""
        if not self._put:
            return np.zeros(0, np.uint8)
        rows = np.fromiter(self._put, np.int64, len(self._put))
        users, items, labels, weights, times, unknown = zip(*self._put.values(), strict=True)
        self.label[rows], self.weight[rows], self.time_ms[rows], self.unknown[rows] = labels, weights, times, unknown
        self.status[rows] = USABLE
        ids = Ragged.of([*users, *items])
        keys, checks = keys_and_checks(ids)
        for half, (start, size, key, check) in enumerate((self.user, self.item)):
            part = slice(half * len(rows), (half + 1) * len(rows))
            start[rows], size[rows] = ids.offsets[:-1][part] + len(self._data), ids.lengths[part]
            key[rows], check[rows] = keys[part], checks[part]
        return ids.data


def _id_columns(n: int) -> tuple[I64, I64, npt.NDArray[np.uint64], npt.NDArray[np.uint32]]:
    """(start, size, key, check bits) of n ids."""
    return np.zeros(n, np.int64), np.zeros(n, np.int64), np.empty(n, np.uint64), np.empty(n, np.uint32)


def _ragged(data: U8, extra: U8, starts: I64, sizes: I64) -> Ragged:
    offsets = np.zeros(len(starts) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    out = np.empty(int(offsets[-1]), np.uint8)
    gather(frozen(data), frozen(extra), starts, offsets, out)
    return Ragged(offsets, out)
