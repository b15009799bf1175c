"""A file of past events as a source of its own: JSON lines or CSV, plain or gzip.

The source is named by the file's bytes, so the same file under another name is not learned again, and a changed one is
another source. Lines are put together to records in a way that depends on the file alone: offsets mean the same after a
restart.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import logging
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from ingest.columns import Partition
from ingest.contract import StreamMisconfigured
from ingest.listed import ListedSource
from ingest.settings import IngestSettings
from native.features import NO_FEATURES, FeatureSchema

log = logging.getLogger(__name__)

TOPIC_PREFIX = "history-"
"""Of the topic id of every file's source."""

_RECORD_LINES = 100
_RECORD_BYTES = 64 << 10  # at most, unless one line is longer
_NUMBERS = ("label", "weight", "timestamp")
_SHOWN = 5


class HistoryFile(ListedSource):
    """`EventSource` over one file, held in memory as a whole. ends: of its one partition.

    An event without a time of its own has the file's time of modification. Lines that can't be used are counted, and
    the first few are logged with their place; there is no topic to send them to.
    """

    def __init__(self, path: Path, settings: IngestSettings, features: FeatureSchema = NO_FEATURES) -> None:
        """Read it. Raises StreamMisconfigured: no such file, a format that isn't known, not gzip, not text."""
        self._path = path
        try:
            data = path.read_bytes()
            modified_ms = path.stat().st_mtime_ns // 1_000_000
        except OSError as error:
            raise StreamMisconfigured(f"the history {path} can't be read: {error.strerror}") from error
        self.partition = Partition(TOPIC_PREFIX + hashlib.sha256(data).hexdigest()[:32], 0)
        records = list(_records(_lines(path, data)))
        self.ends = {self.partition: len(records)}
        self.required: dict[Partition, int] = {}
        self._begun = False
        self.name = f"{path}, {len(records)} records"
        a_batch = max(1, settings.batch_events // _RECORD_LINES)  # in records, as lists are cut
        own = settings.model_copy(update={"codec": "json", "batch_events": a_batch})
        super().__init__({self.partition: records}, own, modified_ms, features)

    @property
    def exhausted(self) -> bool:
        """Whether everything was delivered, from where it was to be continued."""
        return self._begun and super().exhausted

    def seek(self, partition: Partition, offset: int) -> None:
        """Continue from `offset`."""
        super().seek(partition, offset)
        self._begun = True

    def rest(self, timeout_s: float) -> None:
        """Let the time pass; it is to be continued from the store's offset afterwards."""
        self.stay(timeout_s)
        self._begun = False

    def tell_unusable(self) -> None:
        """Log what could not be used; once, at the end."""
        if not self.dead:
            return
        log.warning("%d events of %s can't be used; the first:", len(self.dead), self._path)
        for _, offset, reason in self.dead[:_SHOWN]:
            log.warning("in record %d: %s", offset, reason)


def _lines(path: Path, data: bytes) -> Iterable[bytes]:
    suffixes = [suffix.lower() for suffix in path.suffixes[-2:]]
    if suffixes and suffixes[-1] == ".gz":
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise StreamMisconfigured(f"the history {path} is not whole gzip: {error}") from error
        suffixes.pop()
    if suffixes and suffixes[-1] == ".csv":
        return _csv_lines(path, data)
    if suffixes and suffixes[-1] in (".jsonl", ".ndjson", ".json"):
        return (line for line in data.split(b"\n") if line.strip())
    raise StreamMisconfigured(f"the history {path} should be named .jsonl, .ndjson, .json or .csv, with or without .gz")


def _csv_lines(path: Path, data: bytes) -> Iterator[bytes]:
    """Columns are named by the first line, as the fields of an event are."""
    try:
        rows = csv.DictReader(io.StringIO(data.decode("utf-8-sig")))
    except UnicodeDecodeError as error:
        raise StreamMisconfigured(f"the history {path} is not UTF-8: {error}") from error
    if missing := {"user_id", "item_id"} - set(rows.fieldnames or ()):
        raise StreamMisconfigured(
            f"the history {path} has no column {' nor '.join(sorted(missing))}: its first line must name the columns"
        )
    for row in rows:
        yield json.dumps(event_of(row), ensure_ascii=False).encode()


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


def _records(lines: Iterable[bytes]) -> Iterator[bytes]:
    waiting: list[bytes] = []
    size = 0
    for line in lines:
        if waiting and (len(waiting) == _RECORD_LINES or size + len(line) > _RECORD_BYTES):
            yield b"\n".join(waiting)
            waiting, size = [], 0
        waiting.append(line)
        size += len(line)
    if waiting:
        yield b"\n".join(waiting)
