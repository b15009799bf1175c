"""`towline snapshot`: what the command line says of snapshots, and how it names records."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from embedding_store.contract import Range, Source
from embedding_store.errors import StoreError
from embedding_store.redis_store.registered import RegisteredStore
from embedding_store.settings import RedisSettings
from embedding_store.snapshots.create import Step, create
from embedding_store.snapshots.folder import listed, opened
from embedding_store.snapshots.manifest import Manifest
from embedding_store.snapshots.restore import open_for, opened_registered, restore
from infra.config import TowlineConfig
from infra.errors import InfraError

PATIENCE_S = 60.0
"""Of one command at least: a server takes seconds to dump or to take a shard of a few hundred MB."""

_EXCLUDE = re.compile(r"(?P<topic>[^:]+):(?P<partition>\d{1,9}):(?P<first>\d{1,18})-(?P<last>\d{1,18})")


def create_snapshot(
    config: TowlineConfig, folder: Path | None, name: str, deadline_s: float, out: Console, err: Console
) -> None:
    """Take one and say what it is. Raises InfraError."""
    root = _root(config, folder)
    name = name or datetime.now(UTC).strftime("%Y-%m-%dT%H-%M-%SZ")
    with _told(), closing(opened_registered(_patient(config.redis))) as store, _bar(err) as told:
        manifest = create(store, root, name, deadline_s=deadline_s, told=told)
    out.print(Text(f"snapshot {name}: {_about(manifest)}"), soft_wrap=True)
    out.print(Text(f"in {root / name}"), soft_wrap=True)


def list_snapshots(config: TowlineConfig, folder: Path | None, out: Console) -> bool:
    """One line each, oldest first; False if one of them can't be used."""
    root = _root(config, folder)
    found = listed(root)
    if not found:
        out.print(Text(f"no snapshots in {root}"), soft_wrap=True)
    width = max((len(one.name) for one in found), default=0)
    for one in found:
        about = Text(_about(one.manifest)) if one.manifest else Text(one.fault, style="red")
        out.print(Text.assemble(f"{one.name.ljust(width)}  ", about), soft_wrap=True)
    return all(one.manifest for one in found)


def restore_snapshot(
    config: TowlineConfig,
    folder: Path | None,
    name: str,
    exclude: Sequence[str],
    out: Console,
    err: Console,
    *,
    replay: bool,
    drop_excluded: bool,
) -> None:
    """Put the store back and say where each source goes on. Raises InfraError."""
    root = _root(config, folder)
    with _told():
        manifest = opened(root, name)
        with closing(open_for(_patient(config.redis), manifest)) as store, _bar(err) as told:
            ranges = excluded_ranges(exclude, config.kafka.topic, _known(store, manifest))
            done = restore(store, root, manifest, replay=replay, exclude=ranges, drop_excluded=drop_excluded, told=told)
    out.print(Text(f"restored {name}: {_about(manifest)}"), soft_wrap=True)
    for source, offset in sorted(done.offsets.items()):
        out.print(Text(f"source {source} goes on at offset {offset}"), soft_wrap=True)
    if not replay:
        out.print(Text(f"{done.skipped} records were skipped, which every shard notes"), soft_wrap=True)
    for source, start, stop in done.excluded:
        out.print(Text(f"records {start} to {stop - 1} of source {source} are left out"), soft_wrap=True)


def excluded_ranges(texts: Iterable[str], topic: str, known: frozenset[Source]) -> list[Range]:
    """From TOPIC:PARTITION:FROM-TO each. `topic`: the configured name, which stands for the one topic that is known.

    known: sources that the snapshot or the store has learned from; others are taken for mistakes. Raises InfraError.
    """
    return [_excluded(text, topic, known) for text in texts]


def _excluded(text: str, topic: str, known: frozenset[Source]) -> Range:
    match = _EXCLUDE.fullmatch(text)
    if match is None or int(match["first"]) > int(match["last"]):
        raise InfraError(f"--exclude {text} is not TOPIC:PARTITION:FROM-TO, as in {topic}:0:1200-1350")
    topics = sorted({source.topic_id for source in known if not source.topic_id.startswith(("history-", "client:"))})
    topic_id = match["topic"]
    if topic_id == topic and topic_id not in topics:
        if len(topics) != 1:
            of = ", ".join(topics) or "none"
            raise InfraError(f"--exclude {text}: topic ids that were learned from are {of}: name one of them")
        topic_id = topics[0]
    source = Source(topic_id, int(match["partition"]))
    if source not in known:
        raise InfraError(
            f"--exclude {text}: nothing was ever learned from source {source}, only from "
            f"{', '.join(map(str, sorted(known))) or 'none'}"
        )
    return Range(source, int(match["first"]), int(match["last"]) + 1)


def _known(store: RegisteredStore, manifest: Manifest) -> frozenset[Source]:
    live = (source for table in store.tables() for status in store.status(table) for source in status.offsets)
    return frozenset([*manifest.highest, *live])


def _about(manifest: Manifest) -> str:
    when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(manifest.created_ms / 1000))
    cut = "one cut" if not manifest.behind else f"{manifest.behind} stand behind the newest: replay makes up for it"
    clock = max((shard.clock for shard in manifest.shards), default=0)
    size = f"{manifest.size / 1e6:.1f} MB"
    return f"{when}, {clock} events, {size}, {len(manifest.shards)} shards ({cut}), {manifest.backend} backend"


def _root(config: TowlineConfig, folder: Path | None) -> Path:
    return (folder or config.local.state_dir / "snapshots").expanduser().absolute()


def _patient(settings: RedisSettings) -> RedisSettings:
    return settings.model_copy(update={"timeout_s": max(PATIENCE_S, settings.timeout_s)})


@contextmanager
def _told() -> Iterator[None]:
    """Errors of the store and of the file system as one sentence."""
    try:
        yield
    except StoreError as error:
        raise InfraError(str(error)) from error
    except OSError as error:
        raise InfraError(f"{error.filename or 'the folder of snapshots'}: {error.strerror}") from error


@contextmanager
def _bar(console: Console) -> Iterator[Callable[[Step], None]]:
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"))
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress:
        task = progress.add_task("", total=None)
        yield lambda step: progress.update(task, description=step.what, completed=step.done, total=step.total)
