"""The mirror's file: when it is written, and whether what it holds may be served."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from embedding_store import mirror_file
from embedding_store.contract import EmbeddingStore
from embedding_store.errors import MirrorFileRefused, StoreError
from embedding_store.mirror import ItemMirror
from serving.freshness import Freshness
from serving.settings import ServingSettings
from serving.times import now_ms

log = logging.getLogger(__name__)

NAME = "mirror.bin"
_CONFIRM_S = 3.0  # for the feed to be confirmed once more before a save
_LAST_AFTER_S = 5.0  # a file that is younger is not written once more at the end


class Kept(NamedTuple):
    """A mirror that is followed, and what it is of."""

    store: EmbeddingStore
    document: bytes
    mirror: ItemMirror


def restore(path: Path, kept: Kept) -> float | None:
    """Fill a new mirror from its file: monotonic time of which it holds all; None where there is none to be served.

    Refused, and told to the log: a file that is damaged, or not of this model and store as the store is now. Raises
    StoreUnavailable.
    """
    started_s = time.monotonic()
    try:
        file = mirror_file.read(path)
        if file is None:
            return None
        _check(file, kept)
        kept.mirror.restore(file)
    except MirrorFileRefused as error:
        log.warning("%s: the mirror is loaded from the store", error)
        return None
    age_s = max(0.0, (now_ms() - file.header.as_of_ms) / 1000)
    took_s = time.monotonic() - started_s
    log.info("%d items from %s in %.2f s, as of %.1f s ago", kept.mirror.size, path, took_s, age_s)
    return time.monotonic() - age_s


def _check(file: mirror_file.MirrorFile, kept: Kept) -> None:
    header = file.header
    if header.document != kept.document:
        raise MirrorFileRefused(f"{file.path} is of another model")
    generation = kept.store.generation()
    if header.generation != generation:
        raise MirrorFileRefused(f"{file.path} is of store generation {header.generation}, the store's is {generation}")
    now = [status.clock for status in kept.store.status("item")]
    if len(now) != len(header.standing.clocks):
        raise MirrorFileRefused(f"{file.path} is of {len(header.standing.clocks)} shards, the store has {len(now)}")
    for shard, (saved, clock) in enumerate(zip(header.standing.clocks, now, strict=True)):
        if saved > clock:
            raise MirrorFileRefused(
                f"{file.path} is of another store, or of what it has lost: clock {saved} of shard {shard}, now {clock}"
            )


class Saver(threading.Thread):
    """Writes the file every so often, and at the end. A save that fails is told, counted, and tried again in time."""

    def __init__(self, settings: ServingSettings, freshness: Freshness, kept: Callable[[], Kept | None]) -> None:
        """kept: what is followed now."""
        super().__init__(name="saver", daemon=True)
        self._path, self._every_s = Path(settings.mirror_folder) / NAME, settings.mirror_save_s
        self._freshness, self._kept = freshness, kept
        self._stopped = threading.Event()

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    def run(self) -> None:
        """The thread's body."""
        while not self._stopped.wait(self._every_s):
            self.save()

    def finish(self) -> None:
        """Write it a last time, unless that was just done. While the mirror is still followed."""
        self._stopped.set()
        if self.is_alive():
            self.join()
        age_s = self._freshness.saved_age_s
        if age_s is None or age_s > _LAST_AFTER_S:
            self.save()

    def save(self) -> None:
        """Once, if there is a mirror that is up to date."""
        kept = self._kept()
        if kept is None:
            return
        started_s = time.monotonic()
        try:
            # the generation first: whatever is confirmed after it has seen the feed begin anew where it was raised
            generation = kept.store.generation()
            confirmed_s = self._await_confirmation(time.monotonic())
            if confirmed_s is None:
                return
            as_of_ms = now_ms() - round(1000 * (time.monotonic() - confirmed_s))
            size = kept.mirror.save(self._path, kept.document, generation, as_of_ms)
        except (StoreError, OSError) as error:
            self._freshness.save_failed()
            log.warning("the mirror's file was not written: %s", ascii(str(error)))
            return
        self._freshness.saved(confirmed_s)
        log.info("%s: %.1f MB in %.2f s", self._path, size / 1e6, time.monotonic() - started_s)

    def _await_confirmation(self, since_s: float) -> float | None:
        """Monotonic time, after `since_s`, of which the mirror holds all; None if there is none soon."""
        while (now_s := time.monotonic()) < since_s + _CONFIRM_S:
            confirmed_s = self._freshness.confirmed_s
            if confirmed_s is not None and confirmed_s >= since_s:
                return confirmed_s
            time.sleep(min(0.02, since_s + _CONFIRM_S - now_s))
        return None
