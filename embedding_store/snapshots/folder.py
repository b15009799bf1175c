"""Snapshots in a folder, one sub-folder each. What is listed is whole: a folder gets its name when it is complete."""

from __future__ import annotations

import difflib
import fcntl
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from embedding_store.errors import SnapshotError
from embedding_store.snapshots.manifest import FILE, NAME, Manifest, SavedShard, parse

_UNFINISHED = ".creating-"
_LOCK = "lock"
_PIECE = 1 << 20


class Listed(NamedTuple):
    """A sub-folder. manifest None: it can't be used, and `fault` says why."""

    name: str
    manifest: Manifest | None
    fault: str = ""


def listed(root: Path) -> list[Listed]:
    """All snapshots, oldest first, then those that can't be read."""
    if not root.is_dir():
        return []
    found = []
    for folder in sorted(root.iterdir()):
        if folder.name.startswith(".") or not folder.is_dir():
            continue
        try:
            found.append(Listed(folder.name, opened(root, folder.name)))
        except SnapshotError as e:
            found.append(Listed(folder.name, None, str(e)))
    return sorted(found, key=lambda one: one.manifest.created_ms if one.manifest else 2**63)


def opened(root: Path, name: str) -> Manifest:
    """A snapshot's manifest. Raises SnapshotError; of a name that is not there, with the nearest."""
    checked_name(name)
    path = root / name / FILE
    try:
        document = path.read_bytes()
    except OSError as e:
        others = [f.name for f in root.iterdir() if not f.name.startswith(".")] if root.is_dir() else []
        near = difflib.get_close_matches(name, others, 1)
        hint = f", did you mean '{near[0]}'?" if near else "; `towline snapshot list` shows those that are"
        raise SnapshotError(f"there is no snapshot '{name}' in {root}{hint}") from e
    manifest = parse(document, f"{path}")
    if manifest.name != name:
        raise SnapshotError(f"{path} is of snapshot '{manifest.name}': a folder keeps the name it was made with")
    return manifest


def verify(root: Path, manifest: Manifest, told: Callable[[int], None] = lambda size: None) -> None:  # noqa: ARG005
    """Raises SnapshotError, with its name, on a file whose bytes are not those that were written. told: bytes read."""
    for shard in manifest.shards:
        path = root / manifest.name / shard.file
        digest, size = hashlib.sha256(), 0
        try:
            with path.open("rb") as file:
                while piece := file.read(_PIECE):
                    digest.update(piece)
                    size += len(piece)
                    told(len(piece))
        except OSError as e:
            raise SnapshotError(f"{path} can't be read: {e.strerror}; the snapshot is of no use") from e
        if (size, digest.hexdigest()) != (shard.size, shard.sha256):
            raise SnapshotError(
                f"{path} is damaged: {size} bytes with SHA-256 {digest.hexdigest()[:16]}…, the manifest says "
                f"{shard.size} with {shard.sha256[:16]}…; the snapshot is of no use"
            )


def read_shard(root: Path, manifest: Manifest, shard: SavedShard) -> bytes:
    """A shard's file. Raises SnapshotError if it is no longer what was verified."""
    path = root / manifest.name / shard.file
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != shard.sha256:
        raise SnapshotError(f"{path} has changed since it was verified; the snapshot is of no use")
    return data


class Unfinished:
    """A snapshot that is being written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, file: str, parts: list[bytes]) -> tuple[int, str]:
        """Write a shard's file, or write it anew: its size and SHA-256. On the disk when this returns."""
        digest = hashlib.sha256()
        with (self._folder / file).open("wb") as out:
            for part in parts:
                digest.update(part)
                out.write(part)
            out.flush()
            os.fsync(out.fileno())
        return sum(map(len, parts)), digest.hexdigest()


@contextmanager
def unfinished(root: Path, name: str) -> Iterator[tuple[Unfinished, Callable[[Manifest], None]]]:
    """A new snapshot, and what completes it with its manifest. Unless it is completed, nothing stays.

    What a killed process left is removed on the way: its lock is gone with it. Raises SnapshotError, OSError.
    """
    checked_name(name)
    if (root / name).exists():
        raise SnapshotError(f"there is a snapshot '{name}' in {root}: choose another name")
    root.mkdir(parents=True, exist_ok=True)
    _sweep(root)
    folder = Path(tempfile.mkdtemp(prefix=f"{_UNFINISHED}{name}-", dir=root))
    lock = (folder / _LOCK).open("wb")
    fcntl.flock(lock, fcntl.LOCK_EX)

    def complete(manifest: Manifest) -> None:
        Unfinished(folder).write(FILE, [manifest.model_dump_json(indent=1).encode() + b"\n"])
        (folder / _LOCK).unlink()
        folder.chmod(0o755)
        _sync(folder)
        try:
            folder.rename(root / name)
        except OSError as e:
            raise SnapshotError(f"there is a snapshot '{name}' in {root} by now: choose another name") from e
        _sync(root)

    try:
        yield Unfinished(folder), complete
    finally:
        lock.close()
        shutil.rmtree(folder, ignore_errors=True)


def checked_name(name: str) -> None:
    """Raises SnapshotError."""
    if not re.fullmatch(NAME, name):
        raise SnapshotError(
            f"'{name}' is no name for a snapshot: letters, digits, '_', '-' and '.', a letter or digit first"
        )


def _sweep(root: Path) -> None:
    for folder in root.glob(f"{_UNFINISHED}*"):
        try:
            with (folder / _LOCK).open("rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:  # at work, or just begun
            continue


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
