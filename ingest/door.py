"""What an event must be to come in: one decoded object in, checked fields or a reason out. Pure.

Everything the door decides is a function of the record and its own timestamp, so that a replay, by another worker or
months later, lets in exactly the same events. The one exception is a bound a year past the wall clock, for producers
and brokers that both stamp nonsense.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ingest.settings import IngestSettings
from native.features import ITEM, NO_FEATURES, USER, BadValue, Entry, FeatureSchema

I64 = npt.NDArray[np.int64]

FIELDS = ("user_id", "item_id", "label", "weight", "timestamp", "features")
EARLIEST_MS = 100_000_000_000
"""1973-03-03. Seconds stay below it until the year 5138; milliseconds passed it long before anyone clicked."""
LATEST_PLAUSIBLE_MS = 100_000_000_000_000
"""The year 5138: what lies above is in microseconds or nanoseconds."""
MAX_LABEL = 1e6
"""A label says whether and which way; 1e30 would only overflow what is computed from it. Importance is `weight`."""
_KNOWN = frozenset(FIELDS)
_ZERO_IN_FLOAT32 = 2.0**-150
"""Up to here a positive number rounds to 0."""
YEAR_MS = 366 * 86_400_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_SHOWN_CHARACTERS = 80


class Unusable(Exception):
    """An event that can't be used. `kind` is for counting, the message names the value and the remedy."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


class Fields(NamedTuple):
    """The fields of a usable event.

    One of the ids is empty where the event says what the other's features are, and nothing else.
    """

    user: bytes  # canonical
    item: bytes
    label: float
    weight: float  # neither rounds to 0 in float32 unless it is 0
    time_ms: int
    unknown: bool  # it had fields that nobody reads
    features: tuple[Entry, ...] = ()


@dataclass(frozen=True, slots=True)
class Door:
    """The limits, from `[ingest]`, and the features that the model declares."""

    max_record_bytes: int
    max_id_bytes: int
    max_weight: float
    max_future_ms: int
    schema: FeatureSchema = NO_FEATURES

    @classmethod
    def of(cls, settings: IngestSettings, features: FeatureSchema = NO_FEATURES) -> Door:
        limits = settings.max_record_bytes, settings.max_id_bytes, settings.max_weight
        return cls(*limits, int(settings.max_future_s * 1000), features)

    def latest_ms(self, produced_ms: I64, now_ms: int) -> I64:
        """(n,) newest event time let in with records of those timestamps; a record without one is held to `now_ms`."""
        ahead = np.where(produced_ms > 0, produced_ms, now_ms) + self.max_future_ms
        latest: I64 = np.minimum(ahead, now_ms + max(YEAR_MS, self.max_future_ms)).astype(np.int64, copy=False)
        return latest

    def read(self, event: object, produced_ms: int, latest_ms: int) -> Fields:
        """Check one decoded object. Raises Unusable."""
        if not isinstance(event, dict):
            raise Unusable("malformed", f"not an object but {shown(event)}; send one object with user_id and item_id")
        about = self._about(event)
        user = b"" if about == ITEM else self._id(event, "user_id")
        item = b"" if about == USER else self._id(event, "item_id")
        features, unknown = self._features(event)
        if about is not None:
            features = tuple(entry for entry in features if self.schema.declared[entry.number].side == about)
        return Fields(
            user,
            item,
            _label(event.get("label")),
            self._weight(event.get("weight")),
            _time_ms(event.get("timestamp"), produced_ms, latest_ms),
            unknown or not event.keys() <= _KNOWN,
            features,
        )

    def _about(self, event: dict[object, object]) -> int | None:
        """Whose features alone the event tells: it has one id, and names a declared feature of that side."""
        features = event.get("features")
        if not self.schema or not isinstance(features, dict):
            return None
        for side, own, other in ((ITEM, "item_id", "user_id"), (USER, "user_id", "item_id")):
            if event.get(own) is not None and event.get(other) is None:
                named = (self.schema.by_name.get(name) for name in features if isinstance(name, str))
                if any(k is not None and self.schema.declared[k].side == side for k in named):
                    return side
        return None

    def _features(self, event: dict[object, object]) -> tuple[tuple[Entry, ...], bool]:
        """(values, whether there are some that nobody reads). Raises Unusable."""
        if not self.schema:  # a field like any other that nobody reads
            return (), event.get("features") is not None
        try:
            entries, unknown = self.schema.read(event.get("features"))
        except BadValue as error:
            raise Unusable("features", str(error)) from None
        return tuple(entries), bool(unknown)

    def _id(self, event: dict[object, object], name: str) -> bytes:
        value = event.get(name)
        if value is None:
            raise Unusable(name, f"{name} is missing; send a string or an integer")
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise Unusable(name, f"{name} is {shown(value)}; send a string or an integer")
        try:
            identity = str(value).encode()
        except UnicodeEncodeError:
            raise Unusable(name, f"{name} is {shown(value)}, which is not valid Unicode; send UTF-8") from None
        if not identity:
            raise Unusable(name, f"{name} is empty; send 1 to {self.max_id_bytes} bytes of UTF-8")
        if len(identity) > self.max_id_bytes:
            raise Unusable(
                name, f"{name} has {len(identity)} bytes, {shown(value)}; at most {self.max_id_bytes} are allowed"
            )
        return identity

    def _weight(self, value: object) -> float:
        if value is None:
            return 1.0
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise Unusable("weight", f"weight is {shown(value)}; send a number above 0")
        if not _finite(value) or not 0 < value <= self.max_weight:
            raise Unusable(
                "weight", f"weight is {shown(value)}; send a finite number above 0 and at most {self.max_weight:g}"
            )
        if value <= _ZERO_IN_FLOAT32:
            raise Unusable("weight", f"weight is {shown(value)}, which is 0 in float32; send a larger one or no event")
        return float(value)


def _label(value: object) -> float:
    if value is None:
        return 1.0
    if not isinstance(value, int | float):
        raise Unusable("label", f"label is {shown(value)}; send a number: above 0 for a positive, 0 for a negative")
    if not _finite(value) or value > MAX_LABEL:
        raise Unusable("label", f"label is {shown(value)}; send a finite number from 0 to {MAX_LABEL:g}")
    if value < 0:
        raise Unusable("label", f"label is {shown(value)}; send 0 for an explicit negative")
    if 0 < value <= _ZERO_IN_FLOAT32:
        raise Unusable("label", f"label is {shown(value)}, which is 0 in float32 but not a negative; send 0 or 1")
    return float(value)


def _time_ms(value: object, produced_ms: int, latest_ms: int) -> int:
    name = "timestamp"
    if value is None:
        value, name = produced_ms, "the record's timestamp"
    if isinstance(value, str):
        time_ms = _parse_iso8601(value)
    elif isinstance(value, datetime):
        time_ms = ((value if value.tzinfo else value.replace(tzinfo=UTC)) - _EPOCH) // _MILLISECOND
    elif isinstance(value, int) and not isinstance(value, bool):
        time_ms = value
    else:
        raise Unusable(
            "timestamp", f"timestamp is {shown(value)}; send an integer of milliseconds or an ISO 8601 string"
        )
    if EARLIEST_MS <= time_ms <= latest_ms:
        return time_ms
    said = f"{name} is {shown(value)}"
    if time_ms <= 0:
        raise Unusable("timestamp", f"{said}, before 1970; send milliseconds since the epoch")
    if time_ms < EARLIEST_MS:
        raise Unusable("timestamp", f"{said}, which looks like seconds; send milliseconds: multiply by 1000")
    if time_ms >= LATEST_PLAUSIBLE_MS * 1000:
        raise Unusable("timestamp", f"{said}, which looks like nanoseconds; send milliseconds: divide by 1000000")
    if time_ms >= LATEST_PLAUSIBLE_MS:
        raise Unusable("timestamp", f"{said}, which looks like microseconds; send milliseconds: divide by 1000")
    raise Unusable(
        "timestamp",
        f"{said}, {(time_ms - latest_ms) / 1000:.0f} s later than ingest.max_future_s allows after the record's own "
        "timestamp; set the producer's clock",
    )


def _parse_iso8601(text: str) -> int:
    """Milliseconds since the epoch; a time without an offset is UTC. Raises Unusable."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise Unusable("timestamp", f"timestamp is {shown(text)}; send it like 2026-01-31T12:00:00.000Z") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // _MILLISECOND


def _finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond float64
        return False


def shown(value: object) -> str:
    """The value for a reason: escaped to ASCII, cut to 80 characters, never raising."""
    if isinstance(value, bytes | str):
        text = ascii(value[: _SHOWN_CHARACTERS + 1])
    elif isinstance(value, int) and value.bit_length() > 256:
        text = f"an integer of {value.bit_length()} bits"
    elif isinstance(value, dict):
        text = f"an object of {len(value)} fields"
    elif isinstance(value, list | tuple):
        text = f"an array of {len(value)}"
    else:
        text = ascii(value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…"
