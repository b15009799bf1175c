"""MessagePack: one map in a record, or an array of maps. Field names and rules are those of JSON."""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from ingest.codecs.contract import Decoded, Records, Refusal
from ingest.codecs.draft import Draft
from ingest.columns import MAX_LINES
from ingest.door import Door, Fields, Unusable, shown
from ingest.fetched import Fetched
from native.json_events import REFUSED

_decode = msgspec.msgpack.Decoder().decode
_decode_array = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_HEAD_BYTES = 5  # of an array, at most
_BAD = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, TypeError, ValueError, OverflowError)
"""What msgspec raises over bytes from outside: TypeError for an unhashable key, the others as they say."""


class MessagePack:
    """The `msgpack` codec."""

    def __init__(self, door: Door) -> None:
        self._door = door

    def count(self, fetched: Fetched) -> npt.NDArray[np.int64]:
        ends = fetched.value_at + np.minimum(fetched.value_size, _HEAD_BYTES)
        heads = (
            fetched.data[at:end].tobytes() for at, end in zip(fetched.value_at.tolist(), ends.tolist(), strict=True)
        )
        sizes = np.fromiter(map(_array_size, heads), np.int64, len(fetched))
        return np.clip(sizes, 1, MAX_LINES)

    def decode(self, records: Records, now_ms: int) -> Decoded:
        """See `Codec.decode`. O(bytes), a few objects per event."""
        latest_ms = self._door.latest_ms(records.produced_ms, now_ms)
        refusals: list[Refusal] = []
        events: list[tuple[int, int, bytes]] = []
        for r in range(len(records.values)):
            value = records.values[r]
            try:
                events += [(r, line, text) for line, text in enumerate(self._split(value))]
            except Unusable as error:
                refusals.append(Refusal(r, 0, error.kind, str(error), value))
        draft = Draft(len(events), np.zeros(0, np.uint8), self._door.schema)
        for i, (r, line, text) in enumerate(events):
            draft.record[i], draft.line[i] = r, line
            try:
                draft.put(i, self._read(text, int(records.produced_ms[r]), int(latest_ms[r])))
            except Unusable as error:
                draft.status[i] = REFUSED
                refusals.append(Refusal(r, line, error.kind, str(error), text))
        return draft.finish(records, refusals)

    def _split(self, value: bytes) -> list[bytes]:
        """The maps of a record. Raises Unusable for the record as a whole."""
        limit = self._door.max_record_bytes
        if len(value) > limit:
            raise Unusable(
                "oversized",
                f"the record has {len(value)} bytes; ingest.max_record_bytes allows {limit}: send smaller ones",
            )
        if not value:
            raise Unusable(
                "empty", "the record is empty; send a MessagePack map, or a null value with a key to forget an id"
            )
        size = _array_size(value)
        if size < 0:
            return [value]
        if size > MAX_LINES:
            raise Unusable("lines", f"the record holds {size} events; at most {MAX_LINES} are allowed: send fewer")
        if size == 0:
            raise Unusable("empty", "the record is an empty array; send at least one map")
        try:
            return [bytes(raw) for raw in _decode_array(value)]
        except _BAD as error:
            raise Unusable("malformed", f"{error}, in {shown(value)}; send an array of MessagePack maps") from None

    def _read(self, text: bytes, produced_ms: int, latest_ms: int) -> Fields:
        try:
            event = _decode(text)
        except _BAD as error:
            raise Unusable("malformed", f"{error}, in {shown(text)}; send a MessagePack map") from None
        fields = self._door.read(event, produced_ms, latest_ms)
        if _map_size(text) != len(event):
            raise Unusable("malformed", f"a field is given twice in {shown(text)}; send each once")
        return fields


def _array_size(value: bytes) -> int:
    """Elements that an array's header announces; -1 if it is no array."""
    return _announced(value, 0x90, 0xDC)


def _map_size(value: bytes) -> int:
    """Pairs that a map's header announces; -1 if it is no map."""
    return _announced(value, 0x80, 0xDE)


def _announced(value: bytes, short: int, long: int) -> int:
    head = value[0] if value else 0
    if head & 0xF0 == short:
        return head & 0x0F
    if head == long:
        return int.from_bytes(value[1:3], "big")
    if head == long + 1:
        return int.from_bytes(value[1:5], "big")
    return -1
