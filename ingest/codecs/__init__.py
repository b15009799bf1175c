"""From record values to event columns, one file a format. `of` picks by name."""

from __future__ import annotations

from collections.abc import Callable

from ingest.codecs.contract import Codec, Decoded, Records, Refusal
from ingest.codecs.json_lines import JsonLines
from ingest.codecs.message_pack import MessagePack
from ingest.door import Door
from ingest.settings import IngestSettings
from native.features import NO_FEATURES, FeatureSchema

CODECS: dict[str, Callable[[Door], Codec]] = {"json": JsonLines, "msgpack": MessagePack}
"""By the name in `ingest.codec`; a further one is a class with a `decode`, built from the door's limits."""

__all__ = ["CODECS", "Codec", "Decoded", "JsonLines", "MessagePack", "Records", "Refusal", "of"]


def of(settings: IngestSettings, features: FeatureSchema = NO_FEATURES) -> Codec:
    """The configured codec. features: those that events may bring."""
    return CODECS[settings.codec](Door.of(settings, features))
