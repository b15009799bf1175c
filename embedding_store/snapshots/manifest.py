"""What a snapshot says of itself: `manifest.json` in its folder, written last."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from typing import Literal

from pydantic import Field, ValidationError

from embedding_store.contract import Range, Source
from embedding_store.errors import SnapshotError
from embedding_store.frozen import Frozen
from embedding_store.redis_store.backend import Backend
from embedding_store.redis_store.shard_dump import ShardExport
from embedding_store.shard import ShardMeta

FILE = "manifest.json"
FORMAT: Literal[1] = 1
"""Raised with every change that older releases would read wrongly."""

NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$"
"""Of a snapshot: a file name on every system, and no option."""

Offsets = Mapping[Source, int]


class SavedShard(Frozen):
    """One shard's file: the parts end to end."""

    table: str
    number: int = Field(ge=0)
    file: str = Field(pattern=r"^[a-z][a-z0-9_]*-[0-9]+$")
    size: int = Field(ge=0, description="bytes")
    sha256: str
    parts: tuple[tuple[str, int], ...] = Field(description="name and bytes of each part, in order")
    generation: int
    clock: int = Field(description="usable events applied")
    feed: int
    offsets: dict[str, int] = Field(description="source → next record")

    @property
    def meta(self) -> ShardMeta:
        """What of the shard's meta the protocol decides by."""
        offsets = {source_of(name): offset for name, offset in self.offsets.items()}
        return ShardMeta(generation=self.generation, clock=self.clock, feed=self.feed, offsets=offsets)

    def export(self, data: bytes) -> ShardExport:
        """The shard, from its file's bytes."""
        parts, at = {}, 0
        for name, size in self.parts:
            parts[name] = data[at : at + size] if len(self.parts) > 1 else data
            at += size
        return ShardExport(self.meta, parts)


class Manifest(Frozen):
    """A whole snapshot. Its shards may stand at different offsets, as after a crash: the replay makes up for it."""

    format: Literal[1] = 1
    name: str = Field(pattern=NAME)
    created_ms: int = Field(description="when it was begun, ms since the epoch")
    backend: Backend
    server: str = Field(description="kind and version")
    protocol: int = Field(description="see embedding_store.redis_store.protocol")
    generation: int
    tables: dict[str, str] = Field(description="name → declaration, JSON as it is registered")
    model: str | None = Field(description="the published model document, base64")
    excluded: tuple[tuple[str, int, int, int], ...] = Field(description="topic id, partition, start, stop")
    shards: tuple[SavedShard, ...]

    @property
    def size(self) -> int:
        """Bytes of all shards."""
        return sum(shard.size for shard in self.shards)

    @property
    def model_document(self) -> bytes | None:
        """As `EmbeddingStore.publish_model` had it."""
        return None if self.model is None else base64.b64decode(self.model)

    @property
    def excluded_ranges(self) -> tuple[Range, ...]:
        """As `EmbeddingStore.excluded` had it."""
        return tuple(Range(Source(t, p), start, stop) for t, p, start, stop in self.excluded)

    @property
    def lowest(self) -> Offsets:
        """Where the replay of each source begins: the lowest offset of the shards that know it."""
        known: dict[Source, int] = {}
        for shard in self.shards:
            for source, offset in shard.meta.offsets.items():
                known[source] = min(offset, known.get(source, offset))
        return known

    @property
    def highest(self) -> Offsets:
        """Up to where some shard has learned each source."""
        return highest(shard.meta.offsets for shard in self.shards)

    @property
    def behind(self) -> int:
        """Shards that don't stand where the newest one does in every source; 0: it is one cut of the stream."""
        newest = self.highest
        return sum(shard.meta.offsets != newest for shard in self.shards)


def highest(offsets: Iterable[Offsets]) -> Offsets:
    """The highest offset of each source."""
    known: dict[Source, int] = {}
    for one in offsets:
        for source, offset in one.items():
            known[source] = max(offset, known.get(source, offset))
    return known


def source_of(name: str) -> Source:
    """Inverse of str(source)."""
    topic_id, _, partition = name.rpartition(":")
    return Source(topic_id, int(partition))


def parse(document: bytes, place: str) -> Manifest:
    """Raises SnapshotError on what is no manifest, or one of another release."""
    try:
        return Manifest.model_validate_json(document)
    except ValidationError as e:
        fault = e.errors()[0]
        at = ".".join(map(str, fault["loc"]))
        if at == "format":
            raise SnapshotError(f"{place} is of format {fault['input']}, this release reads {FORMAT}") from e
        raise SnapshotError(f"{place} is damaged: {at or 'it'}: {fault['msg']}") from e
