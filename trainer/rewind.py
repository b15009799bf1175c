"""Policy `rollback` of the guard: the newest snapshot that is older than what is to be left out, restored."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from embedding_store.contract import Range
from embedding_store.errors import SnapshotError
from embedding_store.settings import RedisSettings
from embedding_store.snapshots.folder import listed
from embedding_store.snapshots.restore import open_for, restore

_PATIENCE_S = 60.0  # a shard may be large


class SnapshotRewind:
    """Restores through connections of its own, with more patience than a worker's calls have."""

    def __init__(self, settings: RedisSettings, folder: Path) -> None:
        self._settings = settings.model_copy(update={"timeout_s": max(_PATIENCE_S, settings.timeout_s)})
        self._folder = folder

    def __call__(self, ranges: Sequence[Range]) -> str:
        """Restore, leave `ranges` out, learn again what came after the snapshot; says what was done.

        Raises SnapshotError where no snapshot will do, before anything is changed; StoreUnavailable, after which the
        restore is to be done again and every trainer waits for it.
        """
        known = [one.manifest for one in listed(self._folder) if one.manifest is not None]
        older = [
            manifest for manifest in known if all(manifest.highest.get(one.source, 0) <= one.start for one in ranges)
        ]
        if not older:
            raise SnapshotError(
                f"none of {len(known)} snapshots in {self._folder} is older than these records: take some regularly "
                "with `towline snapshot create`"
            )
        newest = older[-1]
        with closing(open_for(self._settings, newest)) as store:
            restore(store, self._folder, newest, exclude=ranges)
        return f"rolled back to snapshot '{newest.name}', from which all but these records is learned again"
