"""The service as `towline up` starts it, on a Redis with the module; and what it uses of the processor."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embedding_store.redis_store.client import Wire, address_of
from infra.config import TowlineConfig
from infra.local.deadline import Deadline
from infra.local.ports import ephemeral
from infra.local.stack import LocalStack, Status

START_S = 120.0


def cpu_s(pid: int) -> float:
    """Processor time of all threads of a process so far, in seconds."""
    folder = Path(f"/proc/{pid}/task")
    total = 0
    for task in folder.iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that just ended
            total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


@dataclass
class Deployed:
    """A running stack without broker and trainers."""

    stack: LocalStack
    port: int

    def config(self) -> TowlineConfig:
        """With the running store."""
        return self.stack.connected(broker_needed=False)

    def of(self, kind: str) -> Status:
        """The store's or the service's process."""
        return next(status for status in self.stack.status() if status.kind == kind and status.pid)

    def get(self, path: str) -> tuple[int, Any]:
        """Status and decoded JSON."""
        return asked(self.port, "GET", path)

    def post(self, path: str, body: object) -> tuple[int, Any]:
        """Likewise."""
        return asked(self.port, "POST", path, body)

    def await_items(self, items: int, timeout_s: float = START_S) -> None:
        """Until the mirror holds so many. Raises RuntimeError."""

        def held() -> bool:
            status, answer = self.get("/v1/model")
            return status == 200 and answer["index"]["size"] >= items

        if not Deadline(timeout_s).wait(held):
            raise RuntimeError(
                f"the mirror does not hold {items} items after {timeout_s:.0f} s: {self.get('/v1/model')}"
            )

    def await_settled(self, timeout_s: float = START_S) -> None:
        """Until the store rewrites no file any more: what a fill leaves behind is not what is measured."""
        redis = self.config().redis
        wire = Wire(redis, address_of(redis.url))
        try:
            if not Deadline(timeout_s).wait(lambda: b"aof_rewrite_in_progress:0" in wire.call("INFO", "persistence")):
                raise RuntimeError(f"the store still rewrites its file after {timeout_s:.0f} s")
        finally:
            wire.close()

    def kill_store(self) -> None:
        """SIGKILL, as a crash."""
        pid = self.of("store").pid
        os.kill(pid, signal.SIGKILL)
        Deadline(10).wait(lambda: any(status.health == "dead" for status in self.stack.status()))

    def start_store(self) -> None:
        """Back on its old socket; returns once it answers, its data read."""
        self.stack.start_servers()


def asked(port: int, method: str, path: str, body: object = None) -> tuple[int, Any]:
    """One request on a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        data = None if body is None else json.dumps(body)
        connection.request(method, path, data, {} if body is None else {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


@contextlib.contextmanager
def deployed(folder: Path) -> Iterator[Deployed]:
    """A store, started; `stack.start_services(0)` starts the service."""
    config = TowlineConfig.model_validate(
        {
            # what a day of a stream wears off is of its own length: a catalogue that is told of once in a few thousand
            # events would otherwise be nothing but its most recent rows
            "model": {"dim": 64, "step_events": 1_000_000, "popularity_half_life": 1_000_000},
            "kafka": {"bootstrap_servers": f"127.0.0.1:{ephemeral()}"},  # nobody asks: there are no trainers
            "serving": {"port": ephemeral()},
            "local": {"state_dir": folder},
        }
    )
    stack = LocalStack(config, ephemeral_ports=True)
    try:
        stack.start_servers()
        yield Deployed(stack, config.serving.port)
    finally:
        stack.stop()
