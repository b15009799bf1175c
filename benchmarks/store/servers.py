"""The servers of a run: the floor, one with the module, and a stock one of the same program."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from embedding_store.redis_store.client import Wire, address_of
from embedding_store.settings import RedisSettings
from infra.local import process
from infra.local.deadline import Deadline
from infra.local.ports import ephemeral
from infra.local.server import await_answer
from infra.local.store_server import RedisServer, StoreProgram
from native.redis_module.compiler import FoundModule, build, build_module

FLOOR_SOURCE = Path(__file__).parent.parent / "floor.c"
TIMEOUT_S = 60
START_TIMEOUT_S = 60
STOP_TIMEOUT_S = 10


@dataclass(frozen=True)
class Served:
    """A running server."""

    name: str
    record: process.ProcessRecord
    socket: Path

    @property
    def url(self) -> str:
        return f"unix://{self.socket}"

    def wire(self) -> Wire:
        """A client of Redis; for all but the floor."""
        return Wire(RedisSettings(timeout_s=TIMEOUT_S), address_of(self.url))

    def told(self, *command: bytes | str | int) -> Any:
        """The reply to one command, on a connection of its own."""
        wire = self.wire()
        try:
            return wire.call(*command)
        finally:
            wire.close()

    def info(self, section: str) -> dict[str, str]:
        """INFO, as it is told."""
        lines = self.told("INFO", section).decode().splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)

    def cpu_ns(self) -> int:
        """User and system time of all its threads so far."""
        folder = Path(f"/proc/{self.record.pid}/task")
        return sum(int((task / "schedstat").read_text().split()[0]) for task in folder.iterdir())

    def check(self) -> None:
        """Raises RuntimeError if it is dead."""
        if not process.is_alive(self.record):
            raise RuntimeError(f"{self.name} died; its log ends:\n{process.last_lines(self.record.log)}")


@contextlib.contextmanager
def undisturbed(*served: Served) -> Iterator[bool]:
    """We and the servers go before all else on the machine, where that is permitted (it is to root); whether it is.

    A call of a millisecond is two changes of process. On a busy machine each waits for others, and they are all that
    would be measured.
    """
    threads = [0, *(int(task.name) for one in served for task in Path(f"/proc/{one.record.pid}/task").iterdir())]
    before = {thread: (os.sched_getscheduler(thread), os.sched_getparam(thread)) for thread in threads}
    try:
        for thread in threads:
            os.sched_setscheduler(thread, os.SCHED_RR, os.sched_param(1))
    except PermissionError:
        yield False
        return
    try:
        yield True
    finally:
        for thread, (policy, parameters) in before.items():
            with contextlib.suppress(ProcessLookupError):
                os.sched_setscheduler(thread, policy, parameters)


@contextlib.contextmanager
def floor_server(folder: Path, rows: int, dim: int, pages: Literal["small", "huge"]) -> Iterator[Served]:
    """Compiled and started; the files of the two kinds have names of their own."""
    program = build(folder / f"floor-{pages}", [FLOOR_SOURCE])
    socket = folder / f"floor-{pages}.sock"
    command = [str(program), str(socket), str(rows), str(dim), "0.05", pages]
    record = process.start(f"the floor on {pages} pages", command, folder / f"floor-{pages}.log")
    served = Served(f"the floor on {pages} pages", record, socket)
    try:
        Deadline(START_TIMEOUT_S).wait(lambda: socket.exists() or not process.is_alive(record))
        served.check()
        yield served
        served.check()
    finally:
        process.stop(record, STOP_TIMEOUT_S)


@contextlib.contextmanager
def store_server(program: StoreProgram, folder: Path, *, module: bool, aof: bool) -> Iterator[Served]:
    """A server of its own, with the module built from this tree or without."""
    folder.mkdir()
    built = build_module(folder / "towline.so") if module else None
    server = RedisServer(program, folder, ephemeral(), FoundModule(built))
    record = server.start()
    served = Served(server.name, record, folder / "redis.sock")
    try:
        await_answer(server, record, START_TIMEOUT_S, STOP_TIMEOUT_S, lambda: False)
        if not aof:
            served.told("CONFIG", "SET", "appendonly", "no")
        yield served
        served.check()
    finally:
        process.stop(record, STOP_TIMEOUT_S)
