"""Lines of events from files and pipes."""

from __future__ import annotations

import gzip
import io
import os
import time
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest import event_lines
from ingest.contract import StreamMisconfigured
from ingest.event_lines import EventLines, Format, format_of

HEAD = b"user_id,item_id,label,timestamp\n"


def everything(lines: EventLines) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    while not lines.ended:
        read = lines.read(None)
        found += zip(read.numbers, read.events, strict=True)
    return found


def of(data: bytes, kind: Format = "jsonl", *, zipped: bool = False) -> list[tuple[int, bytes]]:
    return everything(EventLines(io.BytesIO(data), "in", kind, zipped=zipped))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.jsonl", ("jsonl", False)),
        ("b/a.b.NDJSON.gz", ("jsonl", True)),
        ("a.csv", ("csv", False)),
        ("a.csv.gz", ("csv", True)),
    ],
)
def test_formats_by_name(name: str, expected: tuple[str, bool]) -> None:
    assert format_of(name) == expected


@pytest.mark.parametrize("name", ["a", "a.txt", "a.gz", "-"])
def test_another_name_is_an_error_with_the_remedy(name: str) -> None:
    with pytest.raises(StreamMisconfigured, match=r"should be named \.jsonl"):
        format_of(name)


def test_lines_are_numbered_and_blank_ones_left_out() -> None:
    assert of(b"a\n\n  \nb\n\nc") == [(1, b"a"), (4, b"b"), (6, b"c")]
    assert of(gzip.compress(b"a\nb\n"), zipped=True) == [(1, b"a"), (2, b"b")]
    assert of(b"") == []


@given(st.lists(st.lists(st.text(st.sampled_from('ab",\n é'), max_size=6), min_size=2, max_size=2)), st.integers(1, 40))
def test_csv_in_blocks_of_any_size(rows: list[list[str]], block: int) -> None:
    def quoted(value: str) -> str:
        return '"' + value.replace('"', '""') + '"'

    text = "user_id,item_id\n" + "".join(f"{quoted(u)},{quoted(i)}\n" for u, i in rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(event_lines, "_BLOCK_BYTES", block)
        found = of(text.encode(), "csv")
    expected = [{k: v for k, v in zip(("user_id", "item_id"), row, strict=True) if v} for row in rows]
    assert [msgspec.json.decode(event) for _, event in found] == expected
    starts, line = [], 2
    for row in rows:
        starts.append(line)
        line += 1 + sum(value.count("\n") for value in row)
    assert [number for number, _ in found] == starts


def test_rows_may_be_shorter_or_blank() -> None:
    found = of(HEAD + b"1,2\n\n3,4,1,\n", "csv")
    assert [number for number, _ in found] == [2, 4]
    assert [msgspec.json.decode(event) for _, event in found] == [
        {"user_id": "1", "item_id": "2"},
        {"user_id": "3", "item_id": "4", "label": 1},
    ]


def test_csv_values_have_the_types_of_their_columns() -> None:
    found = of(b"\xef\xbb\xbf" + HEAD + b"7,8,1,1700000000000\r\n7,x,,2024-01-01T00:00:00Z\n", "csv")
    assert [msgspec.json.decode(event) for _, event in found] == [
        {"user_id": "7", "item_id": "8", "label": 1, "timestamp": 1700000000000},
        {"user_id": "7", "item_id": "x", "timestamp": "2024-01-01T00:00:00Z"},
    ]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"user,item\n1,2\n", "no column item_id nor user_id"),
        (HEAD + b"1,2,3,4,5\n", "line 2 has 5 values"),
        (HEAD + b"1,2\n" + b"\xff,2\n", "line 3 is not UTF-8"),
        (HEAD + b'1,2\n"1,2\n3,4\n', "line 3"),
        (HEAD + b'1,"2"3\n', "line 2 is not CSV"),
        (HEAD + b"1,2\n1\r5,2\n", "line 3 is not CSV"),
    ],
)
def test_what_is_wrong_names_the_line(data: bytes, says: str) -> None:
    with pytest.raises(StreamMisconfigured, match=says):
        of(data, "csv")


def test_gzip_that_is_cut_or_not_told_is_an_error(tmp_path: Path) -> None:
    whole = gzip.compress(os.urandom(2000))
    with pytest.raises(StreamMisconfigured, match="can't be read from line 1 on"):
        of(whole[:-20], zipped=True)
    with pytest.raises(StreamMisconfigured, match="gunzip -c"):
        of(whole)


def test_a_pipe_is_read_as_it_comes() -> None:
    out, into = os.pipe()
    with os.fdopen(out, "rb") as pipe, os.fdopen(into, "wb", buffering=0) as writer:
        lines = EventLines(pipe, "standard input", "jsonl")
        began_s = time.monotonic()
        assert lines.read(0.05).events == ()
        assert time.monotonic() - began_s >= 0.05
        writer.write(b"one\nhal")
        assert list(lines.read(10).events) == [b"one"]
        writer.write(b"f\n")
        assert list(lines.read(10).events) == [b"half"]
        assert not lines.ended
        writer.close()
        assert everything(lines) == []
        assert lines.ended
