"""Taking a snapshot, beside trainers that go on.

Each shard is exported as of one moment, one after the other, so they may stand at different offsets of the stream. That
is what the protocol handles anyway: a restored store looks like one whose shards were rolled back by different amounts,
owners replay each source from the lowest offset, and shards that are ahead see repeats.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from embedding_store.declarations import from_json
from embedding_store.errors import SnapshotError, StoreUnavailable
from embedding_store.redis_store.protocol import OWN
from embedding_store.redis_store.registered import RegisteredStore
from embedding_store.redis_store.server import parse_info
from embedding_store.redis_store.session import Session, routed
from embedding_store.snapshots.folder import Unfinished, unfinished
from embedding_store.snapshots.manifest import Manifest, Offsets, SavedShard, highest

TRIES = 3
"""Exports of a shard at most, for a cut where all offsets are equal."""

REST_S = 2.0
"""Longest pause after a shard."""


class Step(NamedTuple):
    """How far it is."""

    done: int  # shards, or bytes
    total: int
    what: str


Told = Callable[[Step], None]
Place = tuple[str, int]
"""Table and number of a shard."""


def create(
    store: RegisteredStore,
    root: Path,
    name: str,
    *,
    deadline_s: float = 10.0,
    told: Told = lambda step: None,  # noqa: ARG005
    rest: Callable[[float], object] = time.sleep,
) -> Manifest:
    """Write the snapshot `name` below `root`; nothing is left of it unless it is complete.

    If the store stands at one cut of the stream by then, shards that were exported before it got there are exported
    again, up to TRIES times and until `deadline_s`. While the stream moves on that would get nowhere, and every export
    holds up the server. Holds one shard in memory. Raises SnapshotError, StoreBeingRestored, StoreUnavailable, OSError
    of the file system.

    rest: is called after each export with how long it took, in seconds, REST_S at most: half of the time is left to
    trainers and readers.
    """
    created_ms, began_s = time.time_ns() // 1_000_000, time.monotonic()
    generation = store.generation()
    tables = store.tables()
    if not tables:
        raise SnapshotError("the store has no tables yet: there is nothing to take a snapshot of")
    places = [(table, n) for table, doc in tables.items() for n in range(from_json(doc, table).shards)]
    saved: dict[Place, SavedShard] = {}
    with unfinished(root, name) as (folder, complete):
        for attempt in range(TRIES):
            wanted = _not_yet(store, tables, saved) if saved else places
            if not wanted or (attempt and time.monotonic() - began_s > deadline_s):
                break
            for done, (table, number) in enumerate(wanted):
                told(Step(done, len(wanted), f"shard {number} of table '{table}'"))
                exported_s = time.monotonic()
                saved[table, number] = _export(store, folder, table, number)
                rest(min(REST_S, time.monotonic() - exported_s))
            told(Step(len(wanted), len(wanted), "shards"))
        if store.generation() != generation or {shard.generation for shard in saved.values()} != {generation}:
            raise StoreUnavailable("the store was rewound while the snapshot was taken: take it again")
        model = store.published_model()
        manifest = Manifest(
            name=name,
            created_ms=created_ms,
            backend=store.backend,
            server=server_of(store),
            protocol=OWN,
            generation=generation,
            tables={table: document.decode() for table, document in tables.items()},
            model=None if model is None else base64.b64encode(model).decode(),
            excluded=tuple((s.topic_id, s.partition, start, stop) for s, start, stop in store.excluded()),
            shards=tuple(saved[place] for place in places),
        )
        complete(manifest)
    return manifest


def _not_yet(store: RegisteredStore, tables: Iterable[str], saved: Mapping[Place, SavedShard]) -> list[Place]:
    """Shards to be exported again: those that are not as the store is now, if that is one cut."""
    now: dict[Place, Offsets] = {
        (table, number): status.offsets for table in tables for number, status in enumerate(store.status(table))
    }
    cut = highest(now.values())
    if any(offsets != cut for offsets in now.values()):
        return []
    return [place for place, shard in saved.items() if shard.meta.offsets != cut]


def server_of(store: RegisteredStore) -> str:
    """Kind and version of the first server."""

    def ask(session: Session) -> dict[str, str]:
        info: bytes = session.node(store.nodes.masters()[0]).call("INFO", "server")
        return parse_info(info)

    info = routed(store.nodes, ask)
    kind = info.get("server_name", "redis")
    return f"{kind} {info.get(f'{kind}_version') or info.get('redis_version', '?')}"


def _export(store: RegisteredStore, folder: Unfinished, table: str, number: int) -> SavedShard:
    meta, parts = store.export_shard(table, number)
    file = f"{table}-{number}"
    size, sha256 = folder.write(file, list(parts.values()))
    return SavedShard(
        table=table,
        number=number,
        file=file,
        size=size,
        sha256=sha256,
        parts=tuple((part, len(payload)) for part, payload in parts.items()),
        generation=meta.generation,
        clock=meta.clock,
        feed=meta.feed,
        offsets={str(source): offset for source, offset in sorted(meta.offsets.items())},
    )
