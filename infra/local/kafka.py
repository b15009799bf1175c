"""Apache Kafka as one plain Java process: broker and controller in one (KRaft), for development and tests."""

from __future__ import annotations

import base64
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from infra.errors import StartFailed
from infra.local import process
from infra.local.jars import class_path
from infra.local.java import Java
from infra.local.ports import LOOPBACK, ask, ephemeral

_API_VERSIONS = bytes.fromhex("00000011 0012 0000 00000001 0007") + b"towline"  # request 18, version 0, client id
_LOG_CONFIG = Path(__file__).with_name("kafka-log4j2.properties")
_FORMAT_TIMEOUT_S = 60


class KafkaBroker:
    """One broker with its data under `folder`; `jars` have been verified, `java` has been run."""

    kind = "broker"
    note = ""

    def __init__(self, java: Java, jars: Sequence[Path], version: str, folder: Path, port: int, heap_mb: int) -> None:
        self.name = f"Apache Kafka {version} (Java {java.version}, {java.origin})"
        self.port = port
        self._java = java
        self._jars = jars
        self._folder = folder
        self._heap_mb = heap_mb
        self.properties: Mapping[str, str] = {}
        """Further lines of server.properties; they win over ours."""
        self.java_flags: tuple[str, ...] = ()

    @property
    def address(self) -> str:
        """Bootstrap server."""
        return f"{LOOPBACK}:{self.port}"

    def start(self) -> process.ProcessRecord:
        """Writes the properties, formats the storage once, starts the broker."""
        self._folder.mkdir(parents=True, exist_ok=True)
        properties = self._folder / "server.properties"
        settings = {**_settings(self.port, ephemeral(), self._folder / "data"), **self.properties}
        properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()), encoding="utf-8")
        if not (self._folder / "data" / "meta.properties").exists():
            self._format(properties)
        return process.start(
            self.name, self._command("kafka.Kafka", str(properties)), self._folder / "server.log", cwd=self._folder
        )

    def answers(self) -> bool:
        """An ApiVersions request is answered: the broker opens its port only after it joined its controller."""
        return answers_api_versions(self.port)

    def _format(self, properties: Path) -> None:
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "A")
        command = self._command("kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(properties))
        answer = subprocess.run(  # noqa: S603  a Java found by us
            command,
            capture_output=True,
            text=True,
            timeout=_FORMAT_TIMEOUT_S,
            check=False,
            start_new_session=True,  # a terminal's Ctrl-C is ours to handle: half a formatting is no fault of the disk
        )
        if answer.returncode:
            raise StartFailed(
                f"Kafka's storage in {self._folder} can't be formatted: {(answer.stderr or answer.stdout).strip()}; "
                f"if the disk is not full, remove that folder and run `towline up` again"
            )

    def _command(self, main: str, *arguments: str) -> list[str]:
        flags = [
            f"-Xmx{self._heap_mb}m",
            "-XX:TieredStopAtLevel=1",  # starts in half the processor time; a local broker is never the bottleneck
            "-XX:+UseSerialGC",
            "-Djava.awt.headless=true",
            f"-Dlog4j2.configurationFile={_LOG_CONFIG}",
        ]
        if self._java.version >= 24:  # what Kafka's compression and mapped files do is warned of there
            flags += ["--enable-native-access=ALL-UNNAMED", "--sun-misc-unsafe-memory-access=allow"]
        return [str(self._java.program), *flags, *self.java_flags, "-cp", class_path(self._jars), main, *arguments]


def answers_api_versions(port: int) -> bool:
    """Whether a Kafka broker on that port answers with our correlation id and no error."""
    return ask(port, _API_VERSIONS, 10)[4:10] == bytes.fromhex("00000001 0000")


def _settings(port: int, controller_port: int, data: Path) -> Mapping[str, str]:
    """server.properties. Everything that defaults to three copies is one; internal topics are small; nothing is created
    by accident; records up to 8 MiB pass, so that the ingest limit, not the broker's, decides what is too large.
    """
    internal = ("offsets.topic", "transaction.state.log", "share.coordinator.state.topic")
    return {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@{LOOPBACK}:{controller_port}",
        "listeners": f"PLAINTEXT://{LOOPBACK}:{port},CONTROLLER://{LOOPBACK}:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://{LOOPBACK}:{port}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "log.dirs": str(data),
        "auto.create.topics.enable": "false",
        "message.max.bytes": str(8 << 20),
        "replica.fetch.max.bytes": str(8 << 20),
        "group.initial.rebalance.delay.ms": "0",
        "transaction.state.log.min.isr": "1",
        "share.coordinator.state.topic.min.isr": "1",
        **{f"{topic}.replication.factor": "1" for topic in internal},
        **{f"{topic}.num.partitions": "1" for topic in internal},
        # A broker killed with -9 is let in again only when its old session is over; the default 9 s is for networks.
        "broker.session.timeout.ms": "5000",
        "broker.heartbeat.interval.ms": "500",
        "log.segment.bytes": str(256 << 20),
        "log.retention.bytes": str(4 << 30),
        "log.cleaner.dedupe.buffer.size": str(16 << 20),
        "num.network.threads": "2",
        "num.io.threads": "4",
        "background.threads": "2",
    }
