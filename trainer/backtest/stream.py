"""A stream to be replayed: who met what, when, and whether it was liked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from trainer.backtest.condition import Condition
from trainer.backtest.tables import read_columns
from trainer.backtest.times import to_ms


@dataclass(frozen=True, slots=True)
class Stream:
    """n events in stream order."""

    users: list[int | str]
    items: list[int | str]
    time_ms: npt.NDArray[np.int64]  # (n,)
    positive: npt.NDArray[np.bool_]  # (n,)

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
        return Stream(
            [self.users[i] for i in chosen], [self.items[i] for i in chosen], self.time_ms[rows], self.positive[rows]
        )

    def records(self) -> list[bytes]:
        """One JSON event each, as a topic would hold it."""
        rows = zip(self.users, self.items, self.time_ms.tolist(), self.positive.tolist(), strict=True)
        encode = msgspec.json.Encoder().encode
        return [
            encode({"user_id": user, "item_id": item, "timestamp": time, "label": int(liked)})
            for user, item, time, liked in rows
        ]


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
) -> Stream:
    """The events of a file, in file order, which without a time column is the stream's. Raises DataUnusable."""
    condition = Condition.parse(positive_if)
    names = [name for name in (user, item, time, label) if name]
    columns = read_columns(path, names, delimiter=delimiter, header=header)
    n = len(columns[user])
    return Stream(
        [_id(value) for value in columns[user]],
        [_id(value) for value in columns[item]],
        to_ms(columns[time], time_unit) if time else np.arange(n, dtype=np.int64),
        condition.of(columns[label]) if label else np.ones(n, np.bool_),
    )


def _id(value: Any) -> int | str:
    return value if isinstance(value, int) else str(value)
