"""What every codec takes and gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ingest.columns import Events, Profiles
from ingest.fetched import Fetched, Values


@dataclass(frozen=True, slots=True)
class Records:
    """r Kafka records with values, in the order their events shall have."""

    partition: npt.NDArray[np.uint32]  # (r,)
    offset: npt.NDArray[np.int64]  # (r,)
    produced_ms: npt.NDArray[np.int64]  # (r,) record timestamp, -1 if it has none
    values: Values


class Refusal(NamedTuple):
    """An event, or a whole record, that can't be used."""

    record: int  # index into the Records
    line: int  # 0 for a whole record
    kind: str  # for counting
    reason: str  # names the value and the remedy
    value: bytes  # the original bytes of the line or record


@dataclass(frozen=True, slots=True)
class Decoded:
    events: Events
    refusals: list[Refusal]  # in the order of (record, line)
    unknown_fields: int  # usable events that had fields nobody reads
    profiles: Profiles | None = None  # None: there are none


class Codec(Protocol):
    """A format of record values. Stateless and pure: the same records give the same columns, on any worker, always."""

    def decode(self, records: Records, now_ms: int) -> Decoded:
        """Decode every record; what can't be used is refused with a reason and never raises.

        `now_ms` is the wall clock; it matters only to records without a timestamp, or a year ahead of it.
        """

    def count(self, fetched: Fetched) -> npt.NDArray[np.int64]:
        """(n,) about how many events each record holds, cheaply; for closing a micro-batch by size.

        Of a null value: anything.
        """
