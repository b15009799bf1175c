"""Apache Kafka, killed and started again in place, with a listener for each trainer, advertised as the port of a link.

Clients connect to what the broker advertises: without a listener of its own nobody could be cut off alone.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path

from infra.local import process
from infra.local.broker import choose_broker
from infra.local.kafka import KafkaBroker
from infra.local.ports import ephemeral
from infra.local.settings import LocalSettings
from tests.chaos.proxy import HOST, Link
from tests.chaos.waiting import until


class Broker:
    """One broker. `links` lead to it, one for each trainer."""

    def __init__(self, folder: Path, links: Sequence[Link]) -> None:
        settings = LocalSettings(state_dir=folder, broker="kafka", kafka_heap_mb=256)
        broker = choose_broker(settings, ephemeral(), os.environ)
        assert isinstance(broker, KafkaBroker)
        self._broker = broker
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
        controller = ephemeral()
        self._broker.properties = {
            **self._broker.properties,
            "controller.quorum.voters": f"1@{HOST}:{controller}",
            "listeners": ",".join(
                [f"PLAINTEXT://{self.address}", f"CONTROLLER://{HOST}:{controller}", *self._listeners]
            ),
        }
        self._record = self._broker.start()

    def await_answer(self) -> None:
        """Until it answers. Fails past a deadline, with the end of its log."""
        until(self._broker.answers, f"the broker to answer; its log is {self._record.log}")

    def kill(self) -> None:
        """As a power cut does it."""
        os.kill(self._record.pid, signal.SIGKILL)
        until(lambda: not process.is_alive(self._record), "the broker's death")

    def stop(self) -> None:
        """Idempotent."""
        if hasattr(self, "_record"):
            process.stop(self._record, 0.1)
