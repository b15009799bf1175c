"""Cutting micro-batches: contiguous ranges over any fetch sizes, stops, pauses and holes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from ingest.backlog import Backlog
from ingest.fetched import Fetched
from native.kafka_records import count_lines


@dataclass
class R:
    offset: int
    value: bytes | None = b"x"
    key: bytes | None = None
    timestamp: int = 0


def fetched(*records: R) -> Fetched:
    return Fetched.of((r.offset, r.timestamp, r.key, r.value) for r in records)


def in_chunks(records: list[R], sizes: list[int]) -> list[Fetched]:
    """The records cut into chunks of those sizes, empty ones included, and what is left."""
    chunks, at = [], 0
    for size in sizes:
        chunks.append(fetched(*records[at : at + size]))
        at += size
    return [*chunks, fetched(*records[at:])]


def offsets_of(chunks: Sequence[Fetched]) -> list[int]:
    return [offset for chunk in chunks for offset in chunk.offset.tolist()]


def lines(chunk: Fetched) -> np.ndarray:
    out = np.empty(len(chunk), np.int64)
    count_lines(chunk.data, chunk.value_at, chunk.value_size, out)
    return out


def test_a_batch_closes_by_count_and_never_splits_a_record() -> None:
    backlog = Backlog(lines)
    backlog.place(0, 5)
    backlog.add(0, [fetched(R(5, b"a\nb"), R(6, b"a\nb\nc"), R(7, b"a" + b"\nb" * 9), R(8))], 9)
    sizes = []
    for _ in range(4):
        cut = backlog.cut(4, {}, frozenset())
        cut.fill()
        assert cut.closed or cut.events < 4
        _, ranges = cut.take()
        sizes.append(ranges)
    assert sizes == [{0: (5, 6)}, {0: (6, 7)}, {0: (7, 8)}, {0: (8, 9)}]


def test_a_null_value_ends_the_batch() -> None:
    backlog = Backlog(lines)
    backlog.place(0, 0)
    backlog.place(1, 0)
    backlog.add(0, [fetched(R(0), R(1, None), R(2))], 3)
    backlog.add(1, [fetched(R(0), R(1))], 2)
    seen = []
    while True:
        cut = backlog.cut(100, {}, frozenset())
        cut.fill()
        taken, ranges = cut.take()
        if not ranges:
            break
        seen += [[(n, offsets_of(chunks)) for n, chunks in taken]]
    flat = [[(n, o) for n, offsets in batch for o in offsets] for batch in seen]
    (ending,) = [batch for batch in flat if (0, 1) in batch]
    assert (0, 2) not in ending


def test_holes_belong_to_the_range_before_them() -> None:
    backlog = Backlog(lines)
    backlog.place(0, 0)
    backlog.add(0, [fetched(R(0), R(4), R(9))], 12)
    cut = backlog.cut(2, {}, frozenset())
    cut.fill()
    assert cut.take()[1] == {0: (0, 9)}
    cut = backlog.cut(2, {}, frozenset())
    cut.fill()
    assert cut.take()[1] == {0: (9, 12)}
    backlog.add(0, [], 15)  # nothing but markers
    cut = backlog.cut(2, {0: 14}, frozenset())
    cut.fill()
    assert cut.take() == ([], {0: (12, 14)})


def test_a_jump_back_is_refused() -> None:
    backlog = Backlog(lines)
    backlog.place(0, 10)
    assert not backlog.add(0, [fetched(R(9))], 12)
    assert not backlog.add(0, [], 9)
    assert backlog.position(0) == 10


@pytest.mark.parametrize("seed", range(300))
def test_ranges_are_contiguous_and_every_record_comes_once(seed: int) -> None:
    rng = random.Random(seed)
    log = {
        n: [
            R(offset, rng.choice((b"x", b"a\nb\nc", None)))
            for offset in sorted(rng.sample(range(61), rng.randrange(26)))
        ]
        for n in range(rng.randint(1, 3))
    }
    end = {n: 61 + rng.randint(0, 5) for n in log}
    backlog = Backlog(lines)
    known = dict.fromkeys(log, 0)
    for n in log:
        backlog.place(n, 0)
    got: dict[int, list[int]] = {n: [] for n in log}
    stopped = dict.fromkeys(log, 0)
    while any(stopped[n] < end[n] for n in log):
        for n, records in log.items():
            upto = known[n] + rng.randint(0, 8)
            part = records[known[n] : upto]
            known[n] = min(upto, len(records))
            whole = known[n] == len(records)
            position = end[n] if whole else max(backlog.position(n), part[-1].offset + 1 if part else 0)
            sizes = [rng.randint(0, 3) for _ in range(rng.randint(0, 3))]
            assert backlog.add(n, in_chunks(part, sizes), position)
        stops = {rng.choice(sorted(log)): rng.randint(0, 70)} if rng.random() < 0.5 else {}
        paused = frozenset({rng.choice(sorted(log))} if rng.random() < 0.5 else ())
        cut = backlog.cut(rng.randint(1, 12), stops, paused)
        cut.fill()
        taken, ranges = cut.take()
        for n, (start, stop) in ranges.items():
            assert start == stopped[n]
            assert start < stop <= max(stops.get(n, 10**9), start)
            assert n not in paused
            stopped[n] = stop
        for n, chunks in taken:
            offsets = offsets_of(chunks)
            assert all(ranges[n][0] <= o < ranges[n][1] for o in offsets)
            got[n] += offsets
            assert all(size >= 0 for size in [size for chunk in chunks for size in chunk.value_size.tolist()][:-1])
    assert got == {n: [r.offset for r in records] for n, records in log.items()}
