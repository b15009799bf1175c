"""Apache Kafka, killed and started again in place, with a listener for each trainer, advertised as the port of a link.

Clients connect to what the broker advertises: without a listener of its own nobody could be cut off alone. Its classes
come from an archive that the first run on a machine makes: half of what a start costs is loading them one by one.
"""

from __future__ import annotations

import hashlib
import os
import signal
from collections.abc import Sequence
from pathlib import Path

from infra.local import process
from infra.local.broker import choose_broker
from infra.local.jars import kafka_folder
from infra.local.kafka import KafkaBroker
from infra.local.ports import ephemeral
from infra.local.settings import LocalSettings
from tests.chaos.proxy import HOST, Link
from tests.chaos.waiting import until

_ARCHIVE_S = 90.0


class Broker:
    """One broker. `links` lead to it, one for each trainer."""

    def __init__(self, folder: Path, links: Sequence[Link]) -> None:
        settings = LocalSettings(state_dir=folder, broker="kafka", kafka_heap_mb=256)
        broker = choose_broker(settings, ephemeral(), os.environ)
        assert isinstance(broker, KafkaBroker)
        self._broker = broker
        self._archive = kafka_folder(os.environ) / f"{hashlib.sha256(broker.name.encode()).hexdigest()[:16]}.jsa"
        own = {link: ephemeral() for link in links}
        names = [f"TRAINER{number}" for number in range(len(links))]
        listeners = [f"{name}://{HOST}:{own[link]}" for name, link in zip(names, links, strict=True)]
        advertised = [f"{name}://{HOST}:{link.port}" for name, link in zip(names, links, strict=True)]
        self._listeners, self._protocols = listeners, [f"{name}:PLAINTEXT" for name in names]
        broker.properties = {
            "advertised.listeners": ",".join([f"PLAINTEXT://{broker.address}", *advertised]),
            "inter.broker.listener.name": "PLAINTEXT",
            # so long a controller that starts waits for the broker it knew, though that is itself
            "broker.session.timeout.ms": "2000",
            "listener.security.protocol.map": ",".join(
                ["CONTROLLER:PLAINTEXT", "PLAINTEXT:PLAINTEXT", *self._protocols]
            ),
        }
        for link, port in own.items():
            link.lead_to(port, reset=False)

    @property
    def address(self) -> str:
        """Of the broker itself, past all links."""
        return self._broker.address

    def launch(self) -> None:
        """Start it, without waiting until it answers."""
        self._start(*([f"-XX:SharedArchiveFile={self._archive}"] if self._archive.exists() else []))

    def await_answer(self) -> None:
        """Until it answers. Fails past a deadline, naming its log."""
        until(self._broker.answers, f"the broker to answer; its log is {self._record.log}")

    def prepare(self) -> None:
        """Make the archive of its classes, where there is none: they are written down by a broker that ends."""
        if self._archive.exists():
            return
        unfinished = self._archive.with_suffix(f".{os.getpid()}")
        self._start(f"-XX:ArchiveClassesAtExit={unfinished}")
        self.await_answer()
        process.stop(self._record, _ARCHIVE_S)
        unfinished.replace(self._archive)

    def kill(self) -> None:
        """As a power cut does it."""
        os.kill(self._record.pid, signal.SIGKILL)
        until(lambda: not process.is_alive(self._record), "the broker's death")

    def stop(self) -> None:
        """Idempotent."""
        if hasattr(self, "_record"):
            process.stop(self._record, 0.1)

    def _start(self, *java_flags: str) -> None:
        controller = ephemeral()
        self._broker.properties = {
            **self._broker.properties,
            "controller.quorum.voters": f"1@{HOST}:{controller}",
            "listeners": ",".join(
                [f"PLAINTEXT://{self.address}", f"CONTROLLER://{HOST}:{controller}", *self._listeners]
            ),
        }
        self._broker.java_flags = java_flags
        self._record = self._broker.start()
