"""Everything that runs for one measurement: broker, store and trainer, and the processor time each has used."""

from __future__ import annotations

import contextlib
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.local import servers
from benchmarks.machine import cpu_s
from embedding_store.contract import EmbeddingStore
from embedding_store.errors import UnknownTable
from infra.config import TowlineConfig
from infra.local import process, services
from infra.local.ports import ephemeral

START_TIMEOUT_S = 180.0
LOOK_EVERY_S = 0.05


class Look(NamedTuple):
    """Where all stands at one moment."""

    at_s: float  # time.monotonic()
    events: int  # that items and histories have on every shard
    cpu_s: dict[str, float]  # used by the processes of each kind so far


@dataclass(slots=True)
class Plant:
    """Running servers; the trainer and serving once they are started."""

    config: TowlineConfig
    store: EmbeddingStore
    pids: dict[str, int]
    services: list[process.ProcessRecord]

    def start_trainer(self, number: int = 0) -> None:
        """Start a trainer, `number` of several; it is not waited for."""
        self._add(f"trainer {number}" if number else "trainer", services.trainer(self.config, number))

    def start_serving(self) -> None:
        """Start serving; it is not waited for."""
        self._add("serving", services.serving(self.config))

    def _add(self, name: str, service: services.Service) -> None:
        record = service.start()
        self.services.append(record)
        self.pids[name] = record.pid

    def look(self) -> Look:
        """Raises RuntimeError if a process ended."""
        for record in self.services:
            if not process.is_alive(record):
                raise RuntimeError("a service ended; its log ends:\n" + process.last_lines(record.log))
        used: dict[str, float] = {}
        for name, pid in self.pids.items():
            kind = name.partition(" ")[0]  # trainers count together
            used[kind] = used.get(kind, 0.0) + cpu_s(pid)
        try:
            events = min(s.clock for table in ("item", "history") for s in self.store.status(table))
        except UnknownTable:
            events = -1
        return Look(time.monotonic(), events, used)

    def await_events(self, events: int, timeout_s: float = START_TIMEOUT_S) -> Look:
        """The first look at which so many are applied. Raises RuntimeError after the time."""
        pace, deadline = threading.Event(), time.monotonic() + timeout_s
        while (look := self.look()).events < events:
            if time.monotonic() > deadline:
                logs = "\n".join(process.last_lines(record.log) for record in self.services)
                raise RuntimeError(f"{look.events} events after {timeout_s} s, {events} were expected:\n{logs}")
            pace.wait(LOOK_EVERY_S)
        return look


@contextlib.contextmanager
def plant(sections: dict[str, dict[str, Any]], partitions: int) -> Iterator[Plant]:
    """Apache Kafka and a Redis with the module, with data of their own; all is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="towline-e2e-") as folder:
        config = TowlineConfig.model_validate(
            {
                **sections,
                "kafka": {**sections.get("kafka", {}), "partitions": partitions},
                "redis": {"backend": "module"},
                "trainer": {**sections.get("trainer", {}), "metrics_port": ephemeral()},
                "serving": {"port": ephemeral()},
                "local": {"state_dir": Path(folder), "broker": "kafka"},
            }
        )
        with servers(config) as own:
            pids = {line.kind: line.pid for line in own.stack.status() if line.pid}
            yield Plant(own.config, own.store, pids, own.started)
