"""Batches as columns hold what kafka-python reads from them, record by record."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.consumer.fetcher import Fetcher, IsolationLevel
from kafka.errors import CorruptRecordError
from kafka.record.memory_records import MemoryRecords, MemoryRecordsBuilder
from kafka.structs import TopicPartition

from ingest.fetched import Fetched, Values
from ingest.kafka_batches import PartitionBatches
from native.json_events import PADDING

TP = TopicPartition("t", 3)
Row = tuple[int, int, bytes | None, bytes | None]
SOME_BYTES = st.none() | st.binary(max_size=300)
HEADERS = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=2)
RECORDS = st.lists(st.tuples(st.integers(0, 2**41), SOME_BYTES, SOME_BYTES, HEADERS), max_size=8)


def built(batches: list[tuple[int, list]], magic: int = 2, compression: int = 0) -> bytes:
    out = b""
    for offset, records in batches:
        builder = MemoryRecordsBuilder(magic, compression, 1 << 20, offset=offset)
        for time_ms, key, value, headers in records:
            builder.append(time_ms, key, value, headers)
        builder.close()
        one = bytearray(builder.buffer())
        if magic == 2:
            struct.pack_into(">q", one, 0, offset)  # set by brokers, outside of the checksum
        out += bytes(one)
    return out


def reader(kind: type, data: bytes, fetch_offset: int = 0):
    return kind(fetch_offset, TP, MemoryRecords(data), isolation_level=IsolationLevel.READ_COMMITTED)


def rows(fetched: Fetched) -> list[Row]:
    return [
        (int(fetched.offset[i]), int(fetched.time_ms[i]), fetched.key(i),
         None if fetched.value_size[i] < 0
         else fetched.data[fetched.value_at[i] :][: fetched.value_size[i]].tobytes())
        for i in range(len(fetched))
    ]  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.lists(RECORDS, max_size=4), st.sampled_from([0, 1]), st.integers(0, 30), st.integers(1, 9))
def test_columns_are_what_kafka_python_reads(contents: list, compression: int, first: int, at_a_time: int) -> None:
    offset, batches = 0, []
    for records in contents:
        if records:
            batches.append((offset, records))
        offset += len(records)
    data = built(batches, compression=compression)
    theirs, ours = reader(Fetcher.PartitionRecords, data, first), reader(PartitionBatches, data, first)
    expected = [(r.offset, r.timestamp, r.key, r.value) for r in theirs.take(None)]
    got: list[Row] = []
    while ours:
        for chunk in ours.take(at_a_time):
            got += rows(chunk)
            assert ours.next_fetch_offset > chunk.offset[-1]
    assert got == expected
    assert ours.next_fetch_offset == theirs.next_fetch_offset
    assert not ours
    assert not theirs


@pytest.mark.parametrize("magic", [0, 1])
def test_old_formats_too(magic: int) -> None:
    data = built([(5, [(77, b"k", b"v", []), (78, None, None, [])])], magic)
    got = [row for chunk in reader(PartitionBatches, data, 5).take(None) for row in rows(chunk)]
    times = (-1, -1) if magic == 0 else (77, 78)
    assert got == [(5, times[0], b"k", b"v"), (6, times[1], None, None)]


def test_what_precedes_a_damaged_batch_comes_first() -> None:
    good, bad = built([(0, [(1, b"k", b"v", [])])]), bytearray(built([(1, [(1, b"k", b"v", [])])]))
    bad[-1] ^= 1
    batches = reader(PartitionBatches, good + bytes(bad))
    assert len(batches.take(None)) == 1
    with pytest.raises(CorruptRecordError, match=r"at offset 1 of .* does not have its checksum"):
        batches.take(None)
    assert not batches, "or the fetcher would ask it for ever"
    batches = reader(PartitionBatches, bytes(bad), 1)
    with pytest.raises(CorruptRecordError):
        batches.take(None)
    assert not batches


@settings(max_examples=150, deadline=None)
@given(st.integers(61, 160), st.integers(0, 255))
def test_damage_behind_the_checksum_is_an_error_or_other_bytes_and_never_read_beyond(place: int, byte: int) -> None:
    data = bytearray(built([(0, [(1000, b"key", b"value" * 9, [("h", b"x")]), (1001, None, b"w" * 40, [])])]))
    data[min(place, len(data) - 1)] = byte
    batches = PartitionBatches(0, TP, MemoryRecords(bytes(data)), check_crcs=False)
    try:
        chunks = batches.take(None)
    except CorruptRecordError as error:
        assert "in the batch at offset 0" in str(error)  # noqa: PT017
        return
    for chunk in chunks:
        for at, size in ((chunk.key_at, chunk.key_size), (chunk.value_at, chunk.value_size)):
            assert (size >= -1).all()
            assert (at + np.maximum(size, 0) <= len(chunk.data)).all()


def test_values_are_joined_without_those_that_are_null() -> None:
    one = Fetched.of([(0, 0, b"a", b"one"), (1, 0, b"b", None), (2, 0, None, b"")])
    two = Fetched.of([(0, 0, None, None)])
    three = Fetched.of([(7, 0, b"key", b"three"), (8, 0, b"key", b"four")])
    values = Values.joined([one, two, three.part(1, 2)])
    assert [values[i] for i in range(len(values))] == [b"one", b"", b"four"]
    assert len(values.data) >= values.start[-1] + values.size[-1] + PADDING
    assert not len(Values.joined([]))
