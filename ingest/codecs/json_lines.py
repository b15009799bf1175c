"""JSON: one object in a record, or several as JSON lines.

A micro-batch's values are read by a hand parser where they lie; every line it isn't sure of, good or bad, goes to
msgspec and the door. Both give the same columns, which the tests hold them to.
"""

from __future__ import annotations

import json

import msgspec
import numpy as np
import numpy.typing as npt

from ingest.codecs.contract import Decoded, Records, Refusal
from ingest.codecs.draft import Draft
from ingest.columns import MAX_LINES
from ingest.door import EARLIEST_MS, FIELDS, MAX_LABEL, Door, Fields, Unusable, shown
from ingest.fetched import Fetched
from native.features import FeatureSchema
from native.hashing import frozen
from native.json_events import BLANK, REFUSED, UNSURE, USABLE, parse_lines
from native.kafka_records import count_lines

I64 = npt.NDArray[np.int64]
_decode = msgspec.json.Decoder().decode
_QUOTED_FIELDS = tuple(f'"{name}"'.encode() for name in FIELDS)


class JsonLines:
    """The `json` codec. With `fast=False` msgspec reads every line: slower, the same answer."""

    def __init__(self, door: Door, *, fast: bool = True) -> None:
        self._door = door
        self._fast = fast

    def count(self, fetched: Fetched) -> I64:
        out = np.empty(len(fetched), np.int64)
        count_lines(fetched.data, fetched.value_at, fetched.value_size, out)
        return out

    def decode(self, records: Records, now_ms: int) -> Decoded:
        """See `Codec.decode`. O(bytes)."""
        values = records.values
        refusals: list[Refusal] = []
        starts, sizes = values.start, values.size
        limit = self._door.max_record_bytes
        oversized = sizes > limit
        for r in np.flatnonzero(oversized).tolist():
            reason = f"the record has {sizes[r]} bytes; ingest.max_record_bytes allows {limit}: send smaller ones"
            refusals.append(Refusal(r, 0, "oversized", reason, values[r]))
        stops = starts + np.where(oversized, 0, sizes)

        latest_ms = self._door.latest_ms(records.produced_ms, now_ms)
        page = _Page(records, starts, stops, latest_ms, self._door.schema)
        page.parse(self._door)
        for r in np.flatnonzero(page.record_lines > MAX_LINES).tolist():
            reason = f"the record holds {page.record_lines[r]} lines; at most {MAX_LINES} are allowed: send fewer"
            refusals.append(Refusal(r, 0, "lines", reason, values[r]))
            page.draft.blank(page.lines_of(r))
        if not self._fast:
            page.draft.status[page.draft.status == USABLE] = UNSURE
        if (page.draft.status[: page.draft.n] != USABLE).any() or (page.record_lines == 0).any():
            refusals += self._read_the_rest(page)
            refusals += page.empty({refusal.record for refusal in refusals})
        return page.draft.finish(records, refusals)

    def _read_the_rest(self, page: _Page) -> list[Refusal]:
        """Read every UNSURE line with msgspec; returns those that can't be used."""
        draft, refusals = page.draft, []
        first = page.first_lines()
        produced_ms, latest_ms = page.records.produced_ms.tolist(), page.latest_ms.tolist()
        for i in np.flatnonzero(draft.status[: draft.n] == UNSURE).tolist():
            if draft.status[i] == BLANK:  # a record read as a whole below
                continue
            r = int(draft.record[i])
            line = page.line(i)
            try:
                draft.put(i, self._read(line, produced_ms[r], latest_ms[r]))
                continue
            except Unusable as error:
                kind, reason = error.kind, str(error)
            if kind == "malformed" and first[r] == i and _is_object_over_lines(page.records.values[r]):
                line = page.records.values[r]
                draft.blank(page.lines_of(r))
                try:
                    draft.put(i, self._read(line, produced_ms[r], latest_ms[r]))
                    continue
                except Unusable as error:
                    kind, reason = error.kind, str(error)
            draft.status[i] = REFUSED
            refusals.append(Refusal(r, int(draft.line[i]), kind, reason, line))
        return refusals

    def _read(self, text: bytes, produced_ms: int, latest_ms: int) -> Fields:
        try:
            event = _decode(text)
        except RecursionError:
            raise Unusable("malformed", f"nested too deeply: {shown(text)}; send a flat object") from None
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise Unusable("malformed", f"{error}, in {shown(text)}; send one JSON object a line, in UTF-8") from None
        fields = self._door.read(event, produced_ms, latest_ms)
        # every member has a colon: as many members as colons, and none was given twice
        if text.count(b":") != len(event) and (b"\\" in text or any(text.count(name) > 1 for name in _QUOTED_FIELDS)):
            _refuse_duplicates(text)
        return fields


class _Page:
    """The text of a micro-batch and its lines."""

    def __init__(self, records: Records, starts: I64, stops: I64, latest_ms: I64, schema: FeatureSchema) -> None:
        self.records = records
        self.latest_ms = latest_ms
        self._starts, self._stops = starts, stops
        self._data = frozen(records.values.data)
        self.record_lines = np.zeros(len(starts), np.int64)
        count_lines(self._data, starts, stops - starts, self.record_lines)
        room = int(self.record_lines.sum())
        self._line_start, self._line_stop = np.zeros(room, np.int64), np.zeros(room, np.int64)
        self.draft = Draft(room, self._data, schema)

    def parse(self, door: Door) -> None:
        """Split into lines and read those that the hand parser is sure of."""
        draft = self.draft
        draft.n = parse_lines(
            self._data,
            self._starts,
            self._stops,
            np.array(self.records.produced_ms, np.int64),
            self.latest_ms,
            EARLIEST_MS,
            door.max_id_bytes,
            MAX_LABEL,
            float(door.max_weight),
            self.record_lines,
            (self._line_start, self._line_stop, draft.record, draft.line, draft.status, draft.unknown),
            draft.user,
            draft.item,
            draft.label,
            draft.weight,
            draft.time_ms,
            (draft.features_at, draft.features_size),
        )
        if draft.features_size.any():
            draft.read_features()

    def line(self, i: int) -> bytes:
        return self._data[self._line_start[i] : self._line_stop[i]].tobytes()

    def lines_of(self, record: int) -> slice:
        """The record's lines, as a slice of all."""
        start, stop = np.searchsorted(self.draft.record[: self.draft.n], [record, record + 1]).tolist()
        return slice(start, stop)

    def first_lines(self) -> list[int]:
        """(r,) each record's first line that isn't blank, -1 if there is none."""
        filled = np.flatnonzero(self.draft.status[: self.draft.n] != BLANK)[::-1]
        first = np.full(len(self.record_lines), -1, np.int64)
        first[self.draft.record[filled]] = filled
        return first.tolist()

    def empty(self, refused: set[int]) -> list[Refusal]:
        """Records in which no line holds anything, save those refused as a whole."""
        values = self.records.values
        filled = np.zeros(len(values), np.bool_)
        filled[self.draft.record[: self.draft.n][self.draft.status[: self.draft.n] != BLANK]] = True
        reason = "the record is empty; send one JSON object, or a null value with a key to forget an id"
        return [Refusal(r, 0, "empty", reason, values[r]) for r in np.flatnonzero(~filled).tolist() if r not in refused]


def _is_object_over_lines(value: bytes) -> bool:
    """Whether a record is, as a whole, one pretty-printed object."""
    try:
        return b"\n" in value and isinstance(_decode(value), dict)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False


def _refuse_duplicates(text: bytes) -> None:
    """Raise Unusable if the object names one of our fields twice: which one was meant?"""

    def pairs(members: list[tuple[str, object]]) -> list[str]:
        return [name for name, _ in members]

    try:
        names = json.loads(text, object_pairs_hook=pairs, parse_int=len, parse_float=len)
    except RecursionError:
        raise Unusable("malformed", f"nested too deeply: {shown(text)}; send a flat object") from None
    for name in FIELDS:
        if names.count(name) > 1:
            raise Unusable("malformed", f"{name} is given {names.count(name)} times in {shown(text)}; send it once")
