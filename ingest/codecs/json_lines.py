"""JSON: one object in a record, or several as JSON lines.

A micro-batch's values are joined once and read by a hand parser; every line it isn't sure of, good or bad, goes to
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
from native.hashing import frozen
from native.json_events import BLANK, PADDING, REFUSED, UNSURE, USABLE, count_lines, parse_lines

I64 = npt.NDArray[np.int64]
_decode = msgspec.json.Decoder().decode
_QUOTED_FIELDS = tuple(f'"{name}"'.encode() for name in FIELDS)


class JsonLines:
    """The `json` codec. With `fast=False` msgspec reads every line: slower, the same answer."""

    def __init__(self, door: Door, *, fast: bool = True) -> None:
        self._door = door
        self._fast = fast

    def count(self, value: bytes) -> int:
        return value.count(b"\n") + 1

    def decode(self, records: Records, now_ms: int) -> Decoded:
        """See `Codec.decode`. O(bytes)."""
        values, refusals = records.values, []
        starts, stops = _bounds(values)
        if len(values) and int((stops - starts).max()) > self._door.max_record_bytes:
            values, refusals = self._without_oversized(values)
            starts, stops = _bounds(values)
        data = frozen(np.frombuffer(b"\n".join([*values, b"\n" * PADDING]), np.uint8))
        lines = np.zeros(len(values), np.int64)
        total = count_lines(data, starts, stops, lines)
        if len(values) and int(lines.max()) > MAX_LINES:
            for r in np.flatnonzero(lines > MAX_LINES).tolist():
                reason = f"the record holds {lines[r]} lines; at most {MAX_LINES} are allowed: send smaller batches"
                refusals.append(Refusal(r, 0, "lines", reason, values[r]))
                stops[r] = starts[r]
            total = count_lines(data, starts, stops, lines)
        latest_ms = self._door.latest_ms(records.produced_ms, now_ms)
        draft, line_start, line_stop = self._parse(records, data, starts, stops, latest_ms, total)
        if (draft.status != USABLE).any() or (lines == 0).any():
            refusals += self._read_the_rest(records, draft, data, line_start, line_stop, latest_ms)
            refusals += _empty(draft, values, {refusal.record for refusal in refusals})
            refusals.sort(key=lambda refusal: refusal[:2])
        return Decoded(draft.events(records), refusals, int(draft.unknown.sum(where=draft.status == USABLE)))

    def _parse(
        self, records: Records, data: npt.NDArray[np.uint8], starts: I64, stops: I64, latest_ms: I64, total: int
    ) -> tuple[Draft, I64, I64]:
        """Split into lines; with `fast`, read those the hand parser is sure of."""
        draft = Draft(total, data)
        line_start, line_stop = np.zeros(total, np.int64), np.zeros(total, np.int64)
        parse_lines(
            data,
            starts,
            stops,
            np.ascontiguousarray(records.produced_ms),
            latest_ms,
            EARLIEST_MS,
            self._door.max_id_bytes,
            MAX_LABEL,
            float(self._door.max_weight),
            (line_start, line_stop, draft.record, draft.line, draft.status, draft.unknown),
            draft.user,
            draft.item,
            draft.label,
            draft.weight,
            draft.time_ms,
        )
        if not self._fast:
            draft.status[draft.status == USABLE] = UNSURE
        return draft, line_start, line_stop

    def _read_the_rest(
        self,
        records: Records,
        draft: Draft,
        data: npt.NDArray[np.uint8],
        line_start: I64,
        line_stop: I64,
        latest_ms: I64,
    ) -> list[Refusal]:
        """Read every UNSURE line with msgspec; returns those that can't be used."""
        refusals = []
        filled = np.flatnonzero(draft.status != BLANK)
        first = np.full(len(records.values), -1, np.int64)  # (r,) each record's first line that isn't blank
        first[draft.record[filled[::-1]]] = filled[::-1]
        for i in np.flatnonzero(draft.status == UNSURE).tolist():
            if draft.status[i] == BLANK:  # a record read as a whole below
                continue
            r = int(draft.record[i])
            line = data[line_start[i] : line_stop[i]].tobytes()
            produced_ms, latest = int(records.produced_ms[r]), int(latest_ms[r])
            try:
                draft.put(i, self._read(line, produced_ms, latest))
                continue
            except Unusable as error:
                kind, reason = error.kind, str(error)
            if kind == "malformed" and first[r] == i and _is_object_over_lines(records.values[r]):
                line = records.values[r]
                draft.status[slice(*np.searchsorted(draft.record, [r, r + 1]))] = BLANK
                try:
                    draft.put(i, self._read(line, produced_ms, latest))
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
        if b"\\" in text or any(text.count(name) > 1 for name in _QUOTED_FIELDS):
            _refuse_duplicates(text)
        return fields

    def _without_oversized(self, values: list[bytes]) -> tuple[list[bytes], list[Refusal]]:
        limit = self._door.max_record_bytes
        kept, refusals = list(values), []
        for r, value in enumerate(values):
            if len(value) > limit:
                reason = f"the record has {len(value)} bytes; ingest.max_record_bytes allows {limit}: send smaller ones"
                refusals.append(Refusal(r, 0, "oversized", reason, value))
                kept[r] = b""
        return kept, refusals


def _empty(draft: Draft, values: list[bytes], refused: set[int]) -> list[Refusal]:
    """Records in which no line holds anything, save those refused as a whole."""
    filled = np.bincount(draft.record[draft.status != BLANK], minlength=len(values))
    reason = "the record is empty; send one JSON object, or a null value with a key to forget an id"
    return [Refusal(r, 0, "empty", reason, values[r]) for r in np.flatnonzero(filled == 0).tolist() if r not in refused]


def _is_object_over_lines(value: bytes) -> bool:
    """Whether a record is, as a whole, one pretty-printed object."""
    try:
        return b"\n" in value and isinstance(_decode(value), dict)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False


def _bounds(values: list[bytes]) -> tuple[I64, I64]:
    """(start, stop) of each value, laid behind each other with one byte between them."""
    sizes = np.fromiter(map(len, values), np.int64, len(values))
    stops = np.cumsum(sizes + 1) - 1
    return stops - sizes, stops


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
