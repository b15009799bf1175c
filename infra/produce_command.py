"""`towline produce`: events from a file or a pipe into the topic, many in a record."""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from infra.config import load
from infra.errors import InfraError
from infra.local.stack import LocalStack

_SHOWN = 5
_TICK_S = 0.01  # of a rate
_BLOCK_EVENTS = 2_000


class Kind(StrEnum):
    """How the input is written."""

    jsonl = "jsonl"
    csv = "csv"


def produce(
    source: Annotated[
        str,
        typer.Argument(
            metavar="FILE|-",
            help="a .jsonl, .ndjson, .json or .csv, with or without .gz; -: standard input, JSON lines",
        ),
    ],
    config: Annotated[
        Path | None, typer.Option("--config", "-c", metavar="FILE", help="\\[default: ./towline.toml]")
    ] = None,
    kind: Annotated[Kind | None, typer.Option("--format", help="\\[default: by the file's name]")] = None,
    rate: Annotated[float, typer.Option("--rate", min=0, help="events per second; 0: as fast as it goes")] = 0.0,
    linger_ms: Annotated[
        float, typer.Option("--linger-ms", min=0, max=60_000, help="an event waits at most so long for others")
    ] = 12.0,
    max_events: Annotated[int, typer.Option("--max-events", min=1, max=65_536, help="in a record")] = 100,
    max_bytes: Annotated[int, typer.Option("--max-bytes", min=1, help="likewise, unless one event is larger")] = 65_536,
    from_line: Annotated[int, typer.Option("--from-line", min=1, help="skip what comes before")] = 1,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="leave out events that can't be used, instead of stopping there")
    ] = False,
) -> None:
    """Send events to the topic, by user and in order, in records of many: cheap for broker and trainers.

    Each is checked as a trainer would check it. Nothing is lost once the command has ended well; a CSV names its
    columns in its first line: user_id, item_id and, if there are, label, weight, timestamp.
    """
    try:
        from ingest.contract import IngestError  # noqa: PLC0415  of an extra
        from ingest.event_lines import EventLines, format_of  # noqa: PLC0415
        from ingest.kafka_topics import prepare_topics  # noqa: PLC0415
        from ingest.packing import PackLimits  # noqa: PLC0415
        from ingest.packing_producer import PackingProducer  # noqa: PLC0415
        from ingest.producer import EventProducer  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise InfraError(f"{error.name} is not installed: `pip install 'towline[events]'`") from error

    try:
        settings = LocalStack(load(config).config).connected()
        if source == "-":
            written, zipped, name = kind or Kind.jsonl, False, "standard input"
        elif kind:
            written, zipped, name = kind, source.lower().endswith(".gz"), source
        else:
            try:
                by_name, zipped = format_of(source)
            except IngestError as error:
                raise InfraError(f"{error}, or tell its --format") from error
            written, name = Kind(by_name), source
        with ExitStack() as stack:
            file = sys.stdin.buffer if source == "-" else stack.enter_context(_opened(source))
            lines = EventLines(file, name, "csv" if written == Kind.csv else "jsonl", zipped=zipped)
            topic = prepare_topics(settings.kafka)
            limits = PackLimits(max_events, min(max_bytes, topic.max_message_bytes // 2), linger_ms / 1000)
            producer = stack.enter_context(EventProducer(settings.kafka))
            packing = PackingProducer(producer, settings.ingest, settings.model.feature_schema, limits)
            size = 0 if source == "-" else Path(source).stat().st_size
            progress = stack.enter_context(_progress())
            _Run(lines, packing, name, progress, size, rate, skip_bad, from_line).all(settings.kafka.topic)
    except IngestError as error:
        raise InfraError(str(error)) from error


class _Run:
    """One input, to its end."""

    def __init__(
        self, lines: Any, packing: Any, name: str, progress: Progress, size: int, rate: float, skip_bad: bool,
        from_line: int,
    ) -> None:  # fmt: skip
        self._lines, self._packing, self._name = lines, packing, name
        self._progress, self._task = progress, progress.add_task(name, total=size or None, said="")
        self._rate, self._skip_bad, self._from_line = rate, skip_bad, from_line
        self._taken = 0
        self._told = 0
        self._began_s = time.monotonic()

    def all(self, topic: str) -> None:
        """Raises InfraError at the first event that can't be used, with what comes before it sent."""
        from ingest.contract import StreamUnavailable  # noqa: PLC0415  of an extra

        try:
            while not self._lines.ended:
                read = self._lines.read(self._packing.wait_s())
                skipped = sum(number < self._from_line for number in read.numbers) if self._from_line > 1 else 0
                at = skipped
                while at < len(read.events):
                    at = self._part(read, at)
                self._packing.send_due()
                self._show()
        except StreamUnavailable:
            raise  # what waits comes after something that was not sent
        except BaseException:
            self._packing.flush()
            raise
        self._packing.flush()
        self._show()
        counters, seconds = self._packing.counters, max(time.monotonic() - self._began_s, 1e-9)
        refused = f"; {counters.refused:,} can't be used and were left out" if counters.refused else ""
        self._progress.stop()
        sys.stdout.write(
            f"{counters.events:,} events to {topic} in {counters.records:,} records, "
            f"{counters.events / seconds:,.0f} events/s{refused}\n"
        )

    def _part(self, read: Any, at: int) -> int:
        """Send some of what was read, as the rate allows; returns where to go on."""
        stop = min(len(read.events), at + _BLOCK_EVENTS)
        if self._rate:
            while (allowed := int((time.monotonic() - self._began_s) * self._rate) + 1 - self._taken) <= 0:
                wait_s = self._packing.wait_s()
                time.sleep(min(_TICK_S, 1 / self._rate, _TICK_S if wait_s is None else wait_s))
                self._packing.send_due()
            stop = min(stop, at + allowed)
        unfit = self._packing.send(read.events[at:stop], up_to_unfit=not self._skip_bad)
        self._packing.send_due()
        self._taken += stop - at
        if unfit and not self._skip_bad:
            number = read.numbers[at + unfit[0].row]
            self._packing.flush()
            sent = self._packing.counters.events
            raise InfraError(
                f"{self._name} line {number}: {unfit[0].reason}. {sent:,} events before it were sent: correct it and "
                f"go on with --from-line {number}, or leave such events out with --skip-bad"
            )
        for bad in unfit[: _SHOWN - self._told]:
            self._progress.console.print(
                f"{self._name} line {read.numbers[at + bad.row]}: {bad.reason}", highlight=False, markup=False,
                soft_wrap=True,
            )  # fmt: skip
        self._told = min(_SHOWN, self._told + len(unfit))
        return stop

    def _show(self) -> None:
        events, seconds = self._packing.counters.events, max(time.monotonic() - self._began_s, 1e-9)
        said = f"{events:,} events, {events / seconds:,.0f}/s"
        self._progress.update(self._task, completed=self._lines.bytes_read, said=said)


def _opened(source: str) -> Any:
    try:
        return Path(source).open("rb")
    except OSError as error:
        raise InfraError(f"{source} can't be read: {error.strerror}") from error


def _progress() -> Progress:
    """On standard error, where that is a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[said]}"), TimeRemainingColumn())
    return Progress(*columns, console=console, disable=not console.is_terminal, transient=True)
