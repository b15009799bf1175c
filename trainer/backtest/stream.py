"""A stream to be replayed: who met what, when, and whether it was liked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from ingest.columns import Partition
from ingest.listed import ListedSource
from ingest.settings import IngestSettings
from native.features import NO_FEATURES, FeatureSchema, from_text
from trainer.backtest.condition import Condition
from trainer.backtest.tables import read_columns
from trainer.backtest.times import to_ms

_DAY_MS = 86_400_000


class Replayable(Protocol):
    """What a back-test runs on: a file's events, or a topic's."""

    def __len__(self) -> int: ...

    def source(self, partition: Partition, ingest: IngestSettings, features: FeatureSchema) -> ListedSource:
        """A source of the events in their order, offset = number of the event."""


@dataclass(frozen=True, slots=True)
class Stream:
    """n events in stream order."""

    users: list[int | str]
    items: list[int | str]
    time_ms: npt.NDArray[np.int64]  # (n,)
    positive: npt.NDArray[np.bool_]  # (n,)
    features: list[dict[str, Any]] | None = None  # n, by the features' names

    def __len__(self) -> int:
        return len(self.users)

    def ordered(self, *, first_only: bool, negatives: bool) -> Stream:
        """By (time, row of the file); first_only: the first positive of each (user, item); negatives: kept or left out.

        The protocol of the literature has first_only and no negatives.
        """
        order = np.argsort(self.time_ms, kind="stable")
        keep = np.ones(len(order), np.bool_) if negatives else self.positive[order]
        if first_only:
            pairs: set[tuple[int | str, int | str]] = set()
            for at, row in enumerate(order.tolist()):
                if self.positive[row]:
                    pair = (self.users[row], self.items[row])
                    keep[at] &= pair not in pairs
                    pairs.add(pair)
        rows = order[keep]
        chosen = rows.tolist()
        features = None if self.features is None else [self.features[i] for i in chosen]
        users, items = [self.users[i] for i in chosen], [self.items[i] for i in chosen]
        return Stream(users, items, self.time_ms[rows], self.positive[rows], features)

    def records(self) -> list[bytes]:
        """One JSON event each, as a topic would hold it."""
        rows = zip(self.users, self.items, self.time_ms.tolist(), self.positive.tolist(), strict=True)
        encode = msgspec.json.Encoder().encode
        events = [
            {"user_id": user, "item_id": item, "timestamp": time, "label": int(liked)}
            for user, item, time, liked in rows
        ]
        if self.features is not None:
            events = [event | {"features": told} for event, told in zip(events, self.features, strict=True)]
        return [encode(event) for event in events]

    def source(self, partition: Partition, ingest: IngestSettings, features: FeatureSchema) -> ListedSource:
        """A source of the events in their order."""
        as_json = ingest.model_copy(update={"codec": "json"})
        # what the records' own timestamps would have been
        produced_ms = int(self.time_ms.max()) + _DAY_MS
        return ListedSource({partition: self.records()}, as_json, produced_ms, features)


def read_stream(
    path: Path,
    *,
    user: str,
    item: str,
    time: str | None,
    label: str | None,
    positive_if: str,
    time_unit: str = "auto",
    delimiter: str | None = None,
    header: bool | None = None,
    features: FeatureSchema = NO_FEATURES,
) -> Stream:
    """The events of a file, in file order, which without a time column is the stream's. Raises DataUnusable.

    features: those declared, of which the file's columns of their names are taken; of a text's column of kind
    categories the parts between `|`.
    """
    condition = Condition.parse(positive_if)
    names = [name for name in (user, item, time, label) if name]
    wanted = [one.name for one in features.declared]
    columns = read_columns(path, names, delimiter=delimiter, header=header, optional=wanted)
    n = len(columns[user])
    told = {name: columns[name] for name in wanted if name in columns}
    return Stream(
        [_id(value) for value in columns[user]],
        [_id(value) for value in columns[item]],
        to_ms(columns[time], time_unit) if time else np.arange(n, dtype=np.int64),
        condition.of(columns[label]) if label else np.ones(n, np.bool_),
        [_features(features, told, i) for i in range(n)] if told else None,
    )


def _features(schema: FeatureSchema, columns: dict[str, list[Any]], row: int) -> dict[str, Any]:
    found = {}
    for name, column in columns.items():
        value = column[row]
        found[name] = from_text(schema.declared[schema.by_name[name]], value) if isinstance(value, str) else value
    return found


def _id(value: Any) -> int | str:
    return value if isinstance(value, int) else str(value)
