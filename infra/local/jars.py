"""Kafka's jars: exactly those of the lock file, fetched once, checked before every use."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

from infra.errors import LocalStackError, ServerMissing

LOCK_FILE = Path(__file__).with_name("kafka-jars.lock")

Arrived = Callable[[int], None]  # called with the bytes of each jar that has come
Progress = Callable[[int], AbstractContextManager[Arrived]]  # called with the bytes to come, if there are any
Fetch = Callable[[Sequence["Jar"], Path, Arrived], None]
"""Puts the named jars, by `file_name`, into a folder. May stop half-way with ServerMissing; what came is kept."""


class Jar(NamedTuple):
    """One line of the lock file."""

    group: str
    artifact: str
    version: str
    sha256: str
    size: int

    @property
    def coordinates(self) -> str:
        """Maven's name for it."""
        return f"{self.group}:{self.artifact}:{self.version}"

    @property
    def file_name(self) -> str:
        """The name that Maven gives the file."""
        return f"{self.artifact}-{self.version}.jar"


def read_lock(path: Path = LOCK_FILE) -> list[Jar]:
    """The jars of the lock file. Raises LocalStackError on a line that is none."""
    jars = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.startswith("#") or not line.strip():
            continue
        try:
            coordinates, sha256, size = line.split()
            group, artifact, version = coordinates.split(":")
            jars.append(Jar(group, artifact, version, sha256, int(size)))
        except ValueError:
            raise LocalStackError(f"{path} line {number} is not `group:artifact:version sha256 bytes`") from None
    return jars


def cache_dir(environ: Mapping[str, str]) -> Path:
    """Where fetched files live: `towline` in XDG_CACHE_HOME or ~/.cache."""
    base = environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base.startswith("/") else Path.home() / ".cache") / "towline"


def sha256_of(path: Path) -> str:
    """Hex digest of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def _unseen(_total: int) -> Iterator[Arrived]:
    yield lambda _: None


class JarCache:
    """A folder of verified jars. Any number of processes may use one at once.

    A jar gets its name only after its digest was right (rename within the folder): a killed download leaves no bad
    jar, and the next one asks only for what is missing. One process fetches at a time, the others wait for it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def ensure(self, jars: Sequence[Jar], fetches: Sequence[Fetch], progress: Progress = _unseen) -> list[Path]:
        """Paths of all `jars`, each with the right digest now; what is missing comes from the first fetch that has it.

        Raises ServerMissing with every fetch's reason if some jar can't be had.
        """
        if self._missing(jars):
            self._folder.mkdir(parents=True, exist_ok=True)
            with self._lock():
                if missing := self._missing(jars):  # still, now that it is our turn
                    with progress(sum(jar.size for jar in missing)) as arrived:
                        self._fetch(jars, fetches, arrived)
        return [self._folder / jar.file_name for jar in jars]

    def _fetch(self, jars: Sequence[Jar], fetches: Sequence[Fetch], arrived: Arrived) -> None:
        reasons = []
        for fetch in fetches:
            if missing := self._missing(jars):
                reasons.append(self._try(fetch, missing, arrived))
        if missing := self._missing(jars):
            names = ", ".join(jar.coordinates for jar in missing[:2]) + (" …" if len(missing) > 2 else "")
            why = "; ".join(reason for reason in reasons if reason)
            raise ServerMissing(f"{len(missing)} of Kafka's jars can't be had ({names}): {why}")

    def _missing(self, jars: Sequence[Jar]) -> list[Jar]:
        return [jar for jar in jars if not _is_right(self._folder / jar.file_name, jar)]

    def _try(self, fetch: Fetch, jars: Sequence[Jar], arrived: Arrived) -> str:
        """Runs one fetch and keeps the right jars it brought; the reason why it did not bring all of them, else ''."""
        folder = Path(tempfile.mkdtemp(prefix="fetch-", dir=self._folder))
        try:
            try:
                fetch(jars, folder, arrived)
                reason = ""
            except ServerMissing as error:
                reason = str(error)
            for jar in jars:
                path = folder / jar.file_name
                if path.exists() and not _is_right(path, jar):
                    reason = f"{jar.coordinates} came with SHA-256 {sha256_of(path)}, the lock file says {jar.sha256}"
                elif path.exists():
                    path.replace(self._folder / jar.file_name)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return reason

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        with (self._folder / "lock").open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            for left in self._folder.glob("fetch-*"):  # of a fetch that was killed: we hold the lock, so none runs
                shutil.rmtree(left, ignore_errors=True)
            yield


def kafka_folder(environ: Mapping[str, str]) -> Path:
    """The cache's folder for this lock file: releases with other jars have their own."""
    return cache_dir(environ) / f"kafka-{sha256_of(LOCK_FILE)[:12]}"


def class_path(paths: Sequence[Path]) -> str:
    """Java's notation. Files are named one by one: a jar that somebody else put into the folder is not loaded."""
    return os.pathsep.join(str(path) for path in paths)


def _is_right(path: Path, jar: Jar) -> bool:
    return path.is_file() and path.stat().st_size == jar.size and sha256_of(path) == jar.sha256
