"""Lines of events from a file or a pipe, as they come: JSON lines or CSV, files also with gzip."""

from __future__ import annotations

import csv
import gzip
import os
import select
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

import msgspec

from ingest.contract import StreamMisconfigured

Format = Literal["jsonl", "csv"]
_BLOCK_BYTES = 256 << 10
_GZIP = b"\x1f\x8b"
_NUMBERS = ("label", "weight", "timestamp")


@dataclass(frozen=True, slots=True)
class Lines:
    """Events in JSON, and the number of the line where each began, from 1. Blank lines are left out."""

    events: Sequence[bytes]
    numbers: Sequence[int]


def format_of(name: str) -> tuple[Format, bool]:
    """(format, whether it is gzip) by a file's name. Raises StreamMisconfigured."""
    suffixes = [suffix.lower() for suffix in Path(name).suffixes[-2:]]
    zipped = suffixes[-1:] == [".gz"]
    kind = suffixes[-2:-1] if zipped else suffixes[-1:]
    if kind == [".csv"]:
        return "csv", zipped
    if kind and kind[0] in (".jsonl", ".ndjson", ".json"):
        return "jsonl", zipped
    raise StreamMisconfigured(f"{name} should be named .jsonl, .ndjson, .json or .csv, with or without .gz")


class EventLines:
    """Reads `file` to its end, block by block. Not thread-safe."""

    def __init__(self, file: BinaryIO, name: str, kind: Format, *, zipped: bool = False) -> None:
        """name: for messages. A pipe is waited for; whatever is no file is read as it comes."""
        self._raw, self._name, self._kind = file, name, kind
        self._file = gzip.GzipFile(fileobj=file) if zipped else file
        self._waits = not zipped and not file.seekable()
        self._tail = b""
        self._line = 1  # number of the first line of the tail
        self._columns: list[str] = []
        self.ended = False

    @property
    def bytes_read(self) -> int:
        """Of the file, as far as it tells."""
        return 0 if self._waits else self._raw.tell()

    def read(self, timeout_s: float | None) -> Lines:
        """The next events; none if none came within the time. None: wait for ever. Raises StreamMisconfigured."""
        if self._waits and not select.select([self._file], [], [], timeout_s)[0]:
            return Lines((), ())
        try:
            block = os.read(self._file.fileno(), _BLOCK_BYTES) if self._waits else self._file.read(_BLOCK_BYTES)
        except (OSError, EOFError, zlib.error) as error:
            raise StreamMisconfigured(f"{self._name} can't be read from line {self._line} on: {error}") from error
        if self._line == 1 and not self._tail and block.startswith(_GZIP):
            raise StreamMisconfigured(
                f"{self._name} is gzip: name it .gz, or unpack it on the way (gunzip -c FILE.gz | towline produce -)"
            )
        if not block:
            self.ended = True
        *whole, self._tail = (self._tail + block).split(b"\n")
        if self.ended and self._tail:
            whole, self._tail = [*whole, self._tail], b""
        return self._json(whole) if self._kind == "jsonl" else self._csv(whole)

    def _json(self, whole: list[bytes]) -> Lines:
        first, self._line = self._line, self._line + len(whole)
        if all(map(bytes.strip, whole)):
            return Lines(whole, range(first, self._line))
        some = [(line, number) for number, line in enumerate(whole, first) if line.strip()]
        return Lines([line for line, _ in some], [number for _, number in some])

    def _csv(self, whole: list[bytes]) -> Lines:
        events, numbers = [], []
        for number, row in self._rows(whole):
            if not self._columns:
                self._columns = [name.strip() for name in row]
                if missing := {"user_id", "item_id"} - set(self._columns):
                    raise StreamMisconfigured(
                        f"{self._name} has no column {' nor '.join(sorted(missing))}: its first line must name the "
                        "columns"
                    )
            elif len(row) > len(self._columns):
                raise StreamMisconfigured(
                    f"{self._name} line {number} has {len(row)} values, and its first line names {len(self._columns)} "
                    "columns: quote values that hold a comma"
                )
            elif row:
                events.append(msgspec.json.encode(event_of(dict(zip(self._columns, row, strict=False)))))
                numbers.append(number)
        return Lines(events, numbers)

    def _rows(self, whole: list[bytes]) -> Iterator[tuple[int, list[str]]]:
        """(line where it begins, values). A quoted value may hold the end of a line: then more is waited for."""
        at = 0 if any(b'"' in line for line in whole) else len(whole)
        if at and whole:
            yield from self._plain_rows(whole)
        while at < len(whole):
            stop, quotes = at + 1, whole[at].count(b'"')
            while quotes % 2 and stop < len(whole):
                quotes += whole[stop].count(b'"')
                stop += 1
            number = self._line
            if quotes % 2:
                if self.ended:
                    raise StreamMisconfigured(f"{self._name} ends within a quoted value that begins in line {number}")
                self._tail = b"\n".join([*whole[at:], self._tail])
                return
            self._line += stop - at
            try:
                text = b"\n".join(whole[at:stop]).decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise StreamMisconfigured(f"{self._name} line {number} is not UTF-8: {error}") from error
            try:
                yield from ((number, row) for row in csv.reader([text.rstrip("\r")], strict=True))
            except csv.Error as error:
                raise StreamMisconfigured(f"{self._name} line {number} is not CSV: {error}") from error
            at = stop

    def _plain_rows(self, whole: list[bytes]) -> Iterator[tuple[int, list[str]]]:
        """Likewise, where nothing is quoted: a line each."""
        first, self._line = self._line, self._line + len(whole)
        data = b"\n".join(whole)
        try:
            text = data.decode("utf-8-sig" if first == 1 else "utf-8")
        except UnicodeDecodeError as error:
            number = first + data.count(b"\n", 0, error.start)
            raise StreamMisconfigured(f"{self._name} line {number} is not UTF-8: {error}") from error
        rows = csv.reader(text.split("\n"), strict=True)
        try:
            yield from enumerate(rows, first)
        except csv.Error as error:
            number = first + rows.line_num - 1
            raise StreamMisconfigured(f"{self._name} line {number} is not CSV: {error}") from error


def event_of(row: Mapping[str, str]) -> dict[str, float | int | str]:
    """The event of a CSV's row, values by column; empty ones are left out."""
    return {name: _number(value) if name in _NUMBERS else value for name, value in row.items() if name and value}


def _number(text: str) -> float | int | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text  # ISO 8601, or something that is refused at the door
