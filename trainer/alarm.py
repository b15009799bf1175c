"""What tells people that something was quarantined: the log, metrics, and a file that `towline status` shows."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from pathlib import Path

from ingest.columns import Partition
from trainer.guard import Verdict
from trainer.metrics import Metrics

log = logging.getLogger(__name__)


class Alarm:
    """Of one worker. The file holds the last one: `since_ms`, `kind`, `text`, `paused`."""

    def __init__(self, metrics: Metrics, path: str = "") -> None:
        """path: of the file; empty for none. An alarm of the process before this one is over."""
        self._metrics, self._path = metrics, Path(path) if path else None
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def rings(self, ranges: Mapping[Partition, tuple[int, int]], verdict: Verdict, then: str, *, paused: bool) -> None:
        """Records were quarantined. then: what was done about it."""
        where = ", ".join(f"{p.topic_id}:{p.number}:{start}-{stop - 1}" for p, (start, stop) in sorted(ranges.items()))
        text = f"quarantined records {where}: {verdict.reason}; {then}"
        log.error("%s", text)
        self._metrics.quarantines(verdict.kind)
        self._metrics.paused.set(paused)
        if self._path is None:
            return
        document = {"since_ms": time.time_ns() // 1_000_000, "kind": verdict.kind, "text": text, "paused": paused}
        temporary = self._path.with_suffix(".new")
        try:
            temporary.write_text(json.dumps(document), encoding="utf-8")
            temporary.replace(self._path)
        except OSError as error:  # a full disk must not stop the stream: the log and the metrics have it
            log.warning("the alarm can't be written to %s: %s", self._path, error.strerror)

    def over(self) -> None:
        """Somebody has put the store right."""
        self._metrics.paused.set(0)
        if self._path is not None:
            self._path.unlink(missing_ok=True)
