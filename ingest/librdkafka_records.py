"""What librdkafka hands out, an object for each record, as columns."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from confluent_kafka import Message

from ingest.fetched import Fetched


def columns(messages: Sequence[Message]) -> dict[int, Fetched]:
    """Messages without errors, by partition; offsets of each partition ascend. Keys are kept of null values only.

    The objects are librdkafka's price: they are gone through once for each column, by functions in C.
    """
    if not messages:
        return {}
    partition = np.fromiter(map(Message.partition, messages), np.int64, len(messages))
    if (partition[1:] < partition[:-1]).any():  # the bytes of one partition lie together
        order = np.argsort(partition, kind="stable")
        partition = partition[order]
        messages = [messages[i] for i in order.tolist()]
    n = len(messages)
    offset = np.fromiter(map(Message.offset, messages), np.int64, n)
    time_ms = np.array([time for _, time in map(Message.timestamp, messages)], np.int64)
    values: list[bytes | None] = list(map(Message.value, messages))
    key_at, key_size = np.zeros(n, np.int64), np.full(n, -1, np.int64)
    if values.count(None):
        value_size = np.array([-1 if value is None else len(value) for value in values], np.int64)
        held = [b"" if value is None else value for value in values]
    else:
        held = values  # type: ignore[assignment]  # none is None
        value_size = np.fromiter(map(len, held), np.int64, n)
    value_end = np.cumsum(np.maximum(value_size, 0))
    at = int(value_end[-1])
    keys = []
    for i in np.flatnonzero(value_size < 0).tolist():
        key = messages[i].key()
        if key is not None:
            keys.append(key)
            key_at[i], key_size[i] = at, len(key)
            at += len(key)
    whole = Fetched(
        np.frombuffer(b"".join([*held, *keys]), np.uint8),
        offset, time_ms, key_at, key_size, value_end - np.maximum(value_size, 0), value_size,
    )  # fmt: skip
    numbers, starts = np.unique(partition, return_index=True)
    stops = [*starts[1:].tolist(), n]
    return {
        number: whole.part(start, stop)
        for number, start, stop in zip(numbers.tolist(), starts.tolist(), stops, strict=True)
    }
