"""Putting a store back to a snapshot.

0. Everything is verified: files, declarations, the backend, and whether this server reads what that one wrote; nothing
   has been touched yet.
1. The store is marked as being restored: nobody starts to learn, whatever happens to us.
2. Ranges to be left out are published.
3. The generation is raised: whoever still learns is refused.
4. Tables are declared as they were.
5. Shard by shard is put back, each atomically, at a generation that no flush of before carries.
6. The model is published.
7. It is verified that every shard is as it should be, and the mark is taken away.

Killed anywhere in 1 to 7 the mark stays, and doing it again completes it. Trainers wait meanwhile, then go on by
themselves from the offsets that came back with the rows.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from embedding_store.contract import Range
from embedding_store.declarations import check_same, from_json
from embedding_store.errors import SnapshotError, SpecError, StoreMisconfigured, StoreUnavailable
from embedding_store.exclusions import behind, joined
from embedding_store.open import open_store
from embedding_store.redis_store.client import Wire
from embedding_store.redis_store.keys import MODEL, PROBE
from embedding_store.redis_store.protocol import OWN
from embedding_store.redis_store.registered import RegisteredStore
from embedding_store.redis_store.resp import pack
from embedding_store.redis_store.restoring import Mark, check_mark, clear_mark, set_mark, standing_mark
from embedding_store.redis_store.session import Session, routed
from embedding_store.redis_store.shard_dump import restore_command
from embedding_store.settings import RedisSettings
from embedding_store.snapshots.create import Step, Told, server_of
from embedding_store.snapshots.folder import read_shard, verify
from embedding_store.snapshots.manifest import Manifest, Offsets, highest, source_of

PROBE_TTL_MS = 60_000


class Restored(NamedTuple):
    """What was done."""

    generation: int
    excluded: tuple[Range, ...]  # all that trainers leave out from now on
    skipped: int  # records that no shard will see again, summed over sources; 0 with replay
    offsets: Offsets  # where each source is continued: at the lowest of its shards


def open_for(settings: RedisSettings, manifest: Manifest) -> RegisteredStore:
    """The store that the snapshot is to be restored into. Raises SnapshotError if another backend keeps it."""
    store = opened_registered(settings)
    if store.backend == manifest.backend:
        return store
    if store.tables() or settings.backend != "auto":
        raise SnapshotError(
            f"snapshot '{manifest.name}' is of a store that the {manifest.backend} backend kept, this one is kept by "
            f"{store.backend}: use an empty store, or one of that backend"
        )
    store.close()
    return opened_registered(settings.model_copy(update={"backend": manifest.backend}))


def opened_registered(settings: RedisSettings) -> RegisteredStore:
    """`open_store`, for snapshots."""
    store = open_store(settings)
    assert isinstance(store, RegisteredStore)  # noqa: S101  both backends are
    return store


def restore(
    store: RegisteredStore,
    root: Path,
    manifest: Manifest,
    *,
    replay: bool = True,
    exclude: Sequence[Range] = (),
    drop_excluded: bool = False,
    told: Told = lambda step: None,  # noqa: ARG005
) -> Restored:
    """Put the store back to the snapshot `manifest` below `root`.

    replay: trainers learn again what came after it. Else each source is continued where the store stood before: what
    lies between is skipped, recorded in every shard with the reason. exclude: records to be left out from now on,
    together with those that the snapshot or, unless drop_excluded, the store says so of.

    Raises SnapshotError, SpecError, BadRequest, StoreMisconfigured before anything is changed; then StoreUnavailable
    (StoreFull), after which the mark stays and it is to be done again. Holds one shard in memory.
    """
    _check(store, root, manifest, told)
    standing = standing_mark(store.nodes)
    before = _standing(store, standing)
    ranges = _exclusions(store, manifest, exclude, drop=drop_excluded)
    options = "" if replay else " --no-replay"
    mark = Mark(uuid.uuid4().hex, manifest.name, options, {str(s): o for s, o in before.items()})
    set_mark(store.nodes, mark)
    store.exclude(ranges)
    generation = store.fence(max((manifest.generation, *(shard.generation for shard in manifest.shards))))
    store.declare({table: document.encode() for table, document in manifest.tables.items()})
    goal = {} if replay else {source: max(o, manifest.highest.get(source, 0)) for source, o in before.items()}
    for done, shard in enumerate(manifest.shards):
        told(Step(done, len(manifest.shards), f"restoring shard {shard.number} of table '{shard.table}'"))
        check_mark(store.nodes, mark)
        store.import_shard(shard.table, shard.number, shard.export(read_shard(root, manifest, shard)), generation)
        for source, offset in sorted(goal.items()):
            stored = shard.meta.offsets.get(source)
            if stored != offset:
                reason = f"restored from snapshot {manifest.name} without replay"
                store.seek(shard.table, shard.number, source, stored, offset, reason)
    told(Step(len(manifest.shards), len(manifest.shards), "restored"))
    _publish(store, manifest.model_document)
    _check_restored(store, manifest, goal, generation)
    clear_mark(store.nodes, mark)
    lowest = manifest.lowest
    skipped = sum(offset - lowest.get(source, offset) for source, offset in goal.items())
    return Restored(generation, ranges, skipped, {**lowest, **goal})


def _check(store: RegisteredStore, root: Path, manifest: Manifest, told: Told) -> None:
    """Raises SnapshotError, SpecError, StoreMisconfigured unless the snapshot is whole and this store can take it."""
    if manifest.backend != store.backend:
        raise SnapshotError(
            f"snapshot '{manifest.name}' is of a store that the {manifest.backend} backend kept, this one is kept by "
            f"{store.backend}"
        )
    if manifest.protocol != OWN:
        raise SnapshotError(
            f"snapshot '{manifest.name}' is of protocol {manifest.protocol}, this release's is {OWN}: use a release of "
            "that protocol"
        )
    specs = {table: from_json(document.encode(), table) for table, document in manifest.tables.items()}
    for table, document in store.tables().items():
        if table in specs:
            try:
                check_same(from_json(document, table), specs[table])
            except SpecError as e:
                raise SnapshotError(f"snapshot '{manifest.name}' does not fit: {e}") from e
    expected = [(table, number) for table, spec in specs.items() for number in range(spec.shards)]
    if sorted(expected) != sorted((shard.table, shard.number) for shard in manifest.shards):
        raise SnapshotError(f"snapshot '{manifest.name}' is damaged: its shards are not those of its tables")
    read = 0

    def count(size: int) -> None:
        nonlocal read
        read += size
        told(Step(read, manifest.size, "verifying"))

    verify(root, manifest, count)
    _probe(store, root, manifest)


def _probe(store: RegisteredStore, root: Path, manifest: Manifest) -> None:
    """Let the server read the smallest shard, under another name: an older one, or an older module, refuses."""
    smallest = min((s for s in manifest.shards if s.size), key=lambda s: s.size, default=None)
    if smallest is None:
        return
    export = smallest.export(read_shard(root, manifest, smallest))

    def attempt(session: Session) -> None:
        wire: Wire = session.shared(PROBE)
        for payload in export.parts.values():
            wire.send(restore_command(PROBE, payload, PROBE_TTL_MS))
            wire.checked([wire.read()])
        wire.call("DEL", PROBE)

    try:
        routed(store.nodes, attempt)
    except StoreMisconfigured as e:
        raise SnapshotError(
            f"snapshot '{manifest.name}' was written by {manifest.server}, and {server_of(store)} here can't read it: "
            f"{e}; use that server, module and release, or newer ones"
        ) from e


def _standing(store: RegisteredStore, mark: Mark | None) -> Offsets:
    """The highest offset of each source before this restore, or before the one that it completes."""
    noted: Iterable[Offsets] = (
        [{source_of(name): offset for name, offset in mark.standing.items()}]
        if mark is not None
        else [status.offsets for table in store.tables() for status in store.status(table)]
    )
    return highest(noted)


def _exclusions(store: RegisteredStore, manifest: Manifest, given: Sequence[Range], *, drop: bool) -> tuple[Range, ...]:
    """All to be left out. Raises SnapshotError for records that the snapshot has learned already."""
    saved, top = manifest.excluded_ranges, manifest.highest
    for one in joined(given):
        if one.start < top.get(one.source, 0) and not any(
            s.source == one.source and s.start <= one.start and one.stop <= s.stop for s in saved
        ):
            raise SnapshotError(
                f"snapshot '{manifest.name}' has learned source {one.source} up to record {top[one.source] - 1}: "
                f"records from {one.start} on can't be left out of it, restore an older one"
            )
    kept = () if drop else behind(store.excluded(), top)
    return joined([*saved, *kept, *given])


def _publish(store: RegisteredStore, document: bytes | None) -> None:
    if document is not None:
        store.publish_model(document)
        return
    routed(store.nodes, lambda s: s.shared(MODEL).ask(pack("DEL", MODEL)))


def _check_restored(store: RegisteredStore, manifest: Manifest, goal: Offsets, generation: int) -> None:
    """Raises StoreUnavailable if another restore, or somebody who is not fenced off, came between."""
    statuses = {table: store.status(table) for table in manifest.tables}
    for shard in manifest.shards:
        status = statuses[shard.table][shard.number]
        if status.generation != generation or status.offsets != {**shard.meta.offsets, **goal}:
            raise StoreUnavailable(
                f"shard {shard.number} of table '{shard.table}' was changed while it was restored: another restore is "
                "at work; wait for it, or restore again"
            )
