"""Which broker to start: Apache Kafka wherever it can be had, the embedded one only as the last resort."""

from __future__ import annotations

from collections.abc import Mapping

from infra.errors import ServerMissing
from infra.local.download_bar import download_bar
from infra.local.embedded_broker import EmbeddedBroker, find_embedded_program
from infra.local.jars import Fetch, JarCache, kafka_folder, read_lock
from infra.local.java import find_java
from infra.local.kafka import KafkaBroker
from infra.local.maven import directly, find_maven, with_maven
from infra.local.settings import LocalSettings


def choose_broker(settings: LocalSettings, port: int, environ: Mapping[str, str]) -> KafkaBroker | EmbeddedBroker:
    """The broker to start on `port`; Kafka's jars are fetched if need be. Raises ServerMissing if none can be had."""
    if settings.broker == "embedded":
        return EmbeddedBroker(
            find_embedded_program(), settings.state_dir / "noida", port, '[local] broker = "embedded" asks for it'
        )
    try:
        return _apache_kafka(settings, port, environ)
    except ServerMissing as missing:
        if settings.broker == "kafka":
            raise ServerMissing(f'[local] broker = "kafka" is not possible: {missing}') from missing
        return EmbeddedBroker(find_embedded_program(), settings.state_dir / "noida", port, str(missing))


def _apache_kafka(settings: LocalSettings, port: int, environ: Mapping[str, str]) -> KafkaBroker:
    java = find_java(environ)
    jars = read_lock()
    version = next(jar.version for jar in jars if jar.artifact == "kafka_2.13")
    fetches: list[Fetch] = [directly(settings.maven_repository)]
    if (maven := find_maven(environ)) and not settings.maven_repository:
        fetches.insert(0, with_maven(maven, java))
    paths = JarCache(kafka_folder(environ)).ensure(jars, fetches, download_bar(f"Apache Kafka {version}"))
    return KafkaBroker(java, paths, version, settings.state_dir / "kafka", port, settings.kafka_heap_mb)
