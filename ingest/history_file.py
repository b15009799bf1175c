"""A file of past events as a source of its own: JSON lines or CSV, plain or gzip.

The source is named by the file's bytes, so the same file under another name is not learned again, and a changed one is
another source. Lines are put together to records in a way that depends on the file alone: offsets mean the same after a
restart.
"""

from __future__ import annotations

import hashlib
import io
import logging
from collections.abc import Iterable, Iterator
from pathlib import Path

from ingest.columns import Partition
from ingest.contract import StreamMisconfigured
from ingest.event_lines import EventLines, format_of
from ingest.listed import ListedSource
from ingest.settings import IngestSettings
from native.features import NO_FEATURES, FeatureSchema

log = logging.getLogger(__name__)

TOPIC_PREFIX = "history-"
"""Of the topic id of every file's source."""

_RECORD_LINES = 100
_RECORD_BYTES = 64 << 10  # at most, unless one line is longer
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


def _lines(path: Path, data: bytes) -> Iterator[bytes]:
    kind, zipped = format_of(str(path))
    lines = EventLines(io.BytesIO(data), f"the history {path}", kind, zipped=zipped)
    while not lines.ended:
        yield from lines.read(None).events


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
