"""The topics themselves: made if missing, refused if compacted, told apart by id."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from uuid import UUID

from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import KafkaError, TopicAlreadyExistsError

from ingest.contract import StreamMisconfigured
from ingest.kafka_client import client_options, connect, topic_identity, translated
from ingest.settings import KafkaSettings

log = logging.getLogger(__name__)

_CREATE_TIMEOUT_MS = 30_000
DEFAULT_MESSAGE_BYTES = 8 << 20
"""Taken as the broker's message limit where it doesn't tell."""


@dataclass(frozen=True, slots=True)
class Topic:
    """The event topic as the broker describes it."""

    identity: str  # see `topic_identity`
    partitions: int
    max_message_bytes: int


def prepare_topics(settings: KafkaSettings) -> Topic:
    """Create the event and the dead-letter topic where missing, check and describe the former. Harmless to repeat.

    Raises StreamMisconfigured (compacted topic, refused credentials), StreamUnavailable.
    """
    names = (settings.topic, settings.dead_letter_topic)
    doing = f"preparing topics {settings.topic} and {settings.dead_letter_topic}"
    admin = connect(KafkaAdminClient, client_options(settings), doing, settings)
    with translated(doing, settings):
        try:
            present = {t["name"]: t for t in admin.describe_topics(list(names)) if t["error_code"] == 0}
            missing = [name for name in names if name not in present]
            if missing:
                _create(admin, missing, settings)
                present |= {t["name"]: t for t in admin.describe_topics(list(names)) if t["error_code"] == 0}
            described = present.get(settings.topic)
            if described is None:
                raise StreamMisconfigured(f"topic {settings.topic!r} is missing and was not created; create it by hand")
            policy, max_message_bytes = _configuration(admin, settings.topic)
        finally:
            admin.close()
    if "compact" in policy:
        raise StreamMisconfigured(
            f"topic {settings.topic!r} has cleanup.policy {policy!r}: compaction removes events, so that replays would "
            "differ; set it to delete, or name another topic"
        )
    topic_id = described.get("topic_id")
    identity = topic_identity(settings, topic_id if isinstance(topic_id, UUID) else _uuid(topic_id))
    return Topic(identity, len(described["partitions"]), max_message_bytes)


def _create(admin: KafkaAdminClient, missing: list[str], settings: KafkaSettings) -> None:
    options = {"num_partitions": settings.partitions, "replication_factor": settings.replication_factor}
    for name in missing:
        try:
            admin.create_topics({name: options}, timeout_ms=_CREATE_TIMEOUT_MS)
            log.info("created topic %s with %d partitions", name, settings.partitions)
        except TopicAlreadyExistsError:  # another worker was first
            pass
    admin.wait_for_topics(missing, timeout_ms=_CREATE_TIMEOUT_MS)


def _configuration(admin: KafkaAdminClient, topic: str) -> tuple[str, int]:
    """(cleanup.policy, max.message.bytes); brokers that don't describe configurations are taken at the defaults."""
    try:
        answer = admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)], config_filter="all")
        values = (
            answer[ConfigResourceType.TOPIC][topic] if ConfigResourceType.TOPIC in answer else answer["topic"][topic]
        )
    except (KafkaError, KeyError, TypeError) as error:
        log.info("topic %s does not describe its configuration (%r); taken as not compacted", topic, error)
        return "delete", DEFAULT_MESSAGE_BYTES

    def value(name: str, default: str) -> str:
        found = values.get(name, default)
        return str(found["value"] if isinstance(found, dict) else found)

    return value("cleanup.policy", "delete"), int(value("max.message.bytes", str(DEFAULT_MESSAGE_BYTES)))


def _uuid(topic_id: object) -> UUID | None:
    try:
        return UUID(str(topic_id)) if topic_id else None
    except ValueError:
        return None
