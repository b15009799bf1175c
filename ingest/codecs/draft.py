"""Columns under construction: one element per line, of which some turn out usable."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ingest.codecs.contract import Decoded, Records, Refusal
from ingest.columns import MAX_LINES, Events, Profiles
from ingest.door import Fields
from native.features import ITEM, USER, FeatureSchema, FeatureValues
from native.hashing import frozen, keys_and_checks
from native.json_events import BLANK, UNSURE, USABLE, gather
from native.json_features import most_values, read_features
from native.ragged import Ragged

U8 = npt.NDArray[np.uint8]
I64 = npt.NDArray[np.int64]


PROFILE = 4
"""Status of a line that tells the features of one id, beside those of `native.json_events`."""


class Draft:
    """Room for n lines. The ids of lines filled by a kernel lie in `data`; those put one by one are kept aside."""

    def __init__(self, n: int, data: U8, schema: FeatureSchema) -> None:
        self.n = n
        self._schema = schema
        self.features_at, self.features_size = np.zeros(n, np.int64), np.zeros(n, np.int64)
        values = n if schema else 0
        self._first, self._count = np.zeros(values, np.int64), np.zeros(values, np.int64)
        self._number, self._key = np.zeros(0, np.uint8), np.zeros(0, np.uint64)
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
        self.status[i] = USABLE if fields.user and fields.item else PROFILE

    def blank(self, lines: slice) -> None:
        """Those lines hold nothing after all."""
        self.status[lines] = BLANK
        for i in range(lines.start, lines.stop):
            self._put.pop(i, None)

    def read_features(self) -> None:
        """Of the lines filled by a kernel; those that it isn't sure of become UNSURE."""
        n, schema = self.n, self._schema
        usable = self.status[:n] == USABLE
        sizes = np.where(usable, self.features_size[:n], 0)
        if not schema:
            self.unknown[:n] |= sizes > 0
            return
        room = most_values(self._data, self.features_at[:n], sizes)
        self._number, self._key = np.empty(room, np.uint8), np.empty(room, np.uint64)
        bounds = schema.boundary_offsets, schema.boundaries, schema.bucket_offsets, schema.bucket_keys
        found = read_features(
            self._data, self.features_at[:n], sizes, (schema.names.offsets, frozen(schema.names.data)), schema.kind,
            schema.hash_buckets, bounds, self.status[:n], self.unknown[:n], self._first[:n], self._count[:n],
            self._number, self._key,
        )  # fmt: skip
        self._number, self._key = self._number[:found], self._key[:found]

    def finish(self, records: Records, refusals: list[Refusal]) -> Decoded:
        """The usable lines, in order. Copies: the record values may go."""
        profiles = self._profiles(records)
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
            features=self._features(rows) if self._schema else None,
        )
        refusals.sort(key=lambda refusal: refusal[:2])
        return Decoded(events, refusals, int(self.unknown[rows].sum()), profiles)

    def _features(self, rows: I64 | slice) -> FeatureValues:
        first, count = self._first[rows], self._count[rows]
        offsets = np.zeros(len(first) + 1, np.int64)
        np.cumsum(count, out=offsets[1:])
        at = np.arange(offsets[-1]) + np.repeat(first - offsets[:-1], count)
        return FeatureValues(offsets, self._number[at], self._key[at])

    def _profiles(self, records: Records) -> Profiles | None:
        """What lines put one by one tell of one id alone; they are taken out of `_put`."""
        lines = sorted(i for i in self._put if self.status[i] == PROFILE)
        if not lines:
            return None
        told = [self._put.pop(i) for i in lines]
        ids = Ragged.of(fields.item or fields.user for fields in told)
        keys, checks = keys_and_checks(ids)
        record = self.record[lines]
        return Profiles(
            side=np.array([ITEM if fields.item else USER for fields in told], np.uint8),
            partition=records.partition[record],
            place=records.offset[record] * MAX_LINES + self.line[lines],
            time_ms=np.array([fields.time_ms for fields in told], np.int64),
            key=keys,
            check=checks,
            id=ids,
            features=FeatureValues.of(fields.features for fields in told),
        )

    def _take_in(self) -> U8:
        """Write the lines put one by one into the columns; returns their ids' bytes, to be laid behind `data`."""
        if not self._put:
            return np.zeros(0, np.uint8)
        rows = np.fromiter(self._put, np.int64, len(self._put))
        users, items, labels, weights, times, unknown, features = zip(*self._put.values(), strict=True)
        if self._schema:
            values = FeatureValues.of(features)
            self._first[rows], self._count[rows] = len(self._key) + values.offsets[:-1], values.counts
            self._number = np.concatenate([self._number, values.number])
            self._key = np.concatenate([self._key, values.key])
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
