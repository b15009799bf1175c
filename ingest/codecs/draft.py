"""Columns under construction: one element per line, of which some turn out usable."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ingest.codecs.contract import Records
from ingest.columns import MAX_LINES, Events
from ingest.door import Fields
from native.identity import key_and_check
from native.json_events import UNSURE, USABLE, gather
from native.ragged import Ragged

U8 = npt.NDArray[np.uint8]
I64 = npt.NDArray[np.int64]


class Draft:
    """n lines. Ids lie in `data`, or in bytes added one by one, which count as laid behind it."""

    def __init__(self, n: int, data: U8) -> None:
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
        self._added: list[bytes] = []
        self._added_end = len(data)

    def put(self, i: int, fields: Fields) -> None:
        """Line i holds that event; its record and line number are set by the caller."""
        for columns, identity in ((self.user, fields.user), (self.item, fields.item)):
            start, size, key, check = columns
            start[i], size[i] = self._added_end, len(identity)
            key[i], check[i] = key_and_check(identity)
            self._added.append(identity)
            self._added_end += len(identity)
        self.label[i], self.weight[i], self.time_ms[i] = fields.label, fields.weight, fields.time_ms
        self.unknown[i] = fields.unknown
        self.status[i] = USABLE

    def events(self, records: Records) -> Events:
        """The usable lines, in order. Copies: the record values may go."""
        usable = self.status == USABLE
        rows: I64 | slice = slice(None) if usable.all() else np.flatnonzero(usable)
        extra = np.frombuffer(b"".join(self._added), np.uint8)
        record = self.record[rows]
        return Events(
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


def _id_columns(n: int) -> tuple[I64, I64, npt.NDArray[np.uint64], npt.NDArray[np.uint32]]:
    """(start, size, key, check bits) of n ids."""
    return np.zeros(n, np.int64), np.zeros(n, np.int64), np.empty(n, np.uint64), np.empty(n, np.uint32)


def _ragged(data: U8, extra: U8, starts: I64, sizes: I64) -> Ragged:
    offsets = np.zeros(len(starts) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    out = np.empty(int(offsets[-1]), np.uint8)
    gather(data, extra, starts, offsets, out)
    return Ragged(offsets, out)
