"""The local stack as one object: start what the configuration does not point to, tell how it is, stop it all."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Literal, NamedTuple, Self

from infra.config import TowlineConfig
from infra.config_faults import without_password
from infra.errors import NotRunning, StartFailed
from infra.local import process, services
from infra.local.broker import choose_broker
from infra.local.deadline import Deadline
from infra.local.ports import accepts, choose
from infra.local.server import Server, await_answer
from infra.local.state import Started, State, StateFile
from infra.local.store_module import choose_module
from infra.local.store_server import RedisServer, find_store_program
from native.redis_module.compiler import module_path

_LOCK_TIMEOUT_S = 300.0  # a first `up` may be fetching Kafka
_KAFKA_PORT, _REDIS_PORT = 9092, 6379
_ORDER = ("store", "broker", "trainer", "serving")

Health = Literal["running", "dead", "configured", "not started"]


class Endpoints(NamedTuple):
    """Where the servers are, ours or the configured ones. Notes say why they are not the best, if they aren't."""

    bootstrap_servers: str
    redis_url: str
    broker_name: str
    store_name: str
    broker_note: str = ""
    store_note: str = ""


class Status(NamedTuple):
    """One line of `towline status`."""

    kind: str
    name: str
    health: Health
    address: str
    note: str
    pid: int = 0
    log: str = ""
    alarm: str = ""


class LocalStack:
    """All processes of one state directory. Any number of these objects, in any process, see the same stack.

    Starting repairs: what is recorded and alive is kept, what died is started again, on its old port where that is
    free, with its old data. As a context manager it is a private stack: servers start on entry, all stops on exit.
    """

    def __init__(
        self,
        config: TowlineConfig,
        *,
        ephemeral_ports: bool = False,
        environ: Mapping[str, str] | None = None,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        """Nothing is started yet.

        ephemeral_ports: any free port, not the usual ones; for the demo and tests. environ: where programs are sought.
        stopping: asked while something starts; once it says so, starting raises Interrupted.
        """
        self._config = config
        self._local = config.local
        self._environ = os.environ if environ is None else environ
        self._ephemeral = ephemeral_ports
        self._stopping = stopping
        self._file = StateFile(config.local.state_dir)

    def fetch(self) -> None:
        """Has at hand what `start_servers` will start, downloaded if need be. Starts nothing. Raises ServerMissing."""
        if not self._store_is_configured:
            find_store_program(self._local.store_server, self._environ)
            module_path(self._environ)
        if not self._broker_is_configured:
            choose_broker(self._local, 0, self._environ)

    def require_ports(self) -> None:
        """Before anything is started: serving's port is free, or has our own serving. Raises PortInUse."""
        entry = self._file.read().of("serving")
        if entry is None or not process.is_alive(entry.process):
            services.require_port(self._config.serving)

    def start_servers(self) -> Endpoints:
        """Starts store and broker as far as the configuration names none, and waits until they answer.

        Raises PortInUse, ServerMissing, StartFailed, Interrupted. What had been started by then stays up, for `stop` or
        another try.
        """
        with self._file.lock(_LOCK_TIMEOUT_S):
            if not self._store_is_configured:
                self._ensure("store", self._store)
            if not self._broker_is_configured:
                self._ensure("broker", self._broker)
        return self.endpoints()

    def start_services(self, trainers: int | None = None) -> None:
        """Starts trainers and serving against the servers; those that run already are left alone.

        trainers: so many from now on; those above are stopped, which apply what they hold and leave the group. None: as
        many as were started before, `[local] trainers` at least.
        """
        config = self.connected()
        with self._file.lock(_LOCK_TIMEOUT_S):
            started = [entry for entry in self._file.read().entries if entry.kind == "trainer"]
            count = max(self._local.trainers, len(started)) if trainers is None else trainers
            for number in range(count):
                self._ensure_named(f"trainer {number}", partial(_trainer, config, number))
            kept = {f"trainer {number}" for number in range(count)}
            for entry in started:
                if entry.name not in kept:
                    process.stop(entry.process, self._local.stop_timeout_s)
                    self._file.remove(entry)
            self._ensure("serving", lambda _: services.serving(config))

    def stop(self) -> list[str]:
        """Stops all that this stack has started, last first; names what was stopped. Data stays. Idempotent."""
        with self._file.lock(_LOCK_TIMEOUT_S):
            stopped = []
            for entry in reversed(self._file.read().entries):
                if process.is_alive(entry.process):
                    process.stop(entry.process, self._local.stop_timeout_s)
                    stopped.append(entry.name)
                self._file.remove(entry)
        return stopped

    def endpoints(self, *, broker_needed: bool = True) -> Endpoints:
        """Where the servers are now. Raises NotRunning where neither the configuration nor the stack has one."""
        state = self._file.read()
        store = None if self._store_is_configured else self._alive(state, "store", "[redis] url")
        broker = None
        if broker_needed and not self._broker_is_configured:
            broker = self._alive(state, "broker", "[kafka] bootstrap_servers")
        return Endpoints(
            bootstrap_servers=broker.address if broker else self._config.kafka.bootstrap_servers,
            redis_url=store.address if store else self._config.redis.url,
            broker_name=broker.name if broker else "configured Kafka",
            store_name=store.name if store else "configured Redis",
            broker_note=broker.note if broker else "",
            store_note=store.note if store else "",
        )

    def connected(self, *, broker_needed: bool = True) -> TowlineConfig:
        """The configuration with the running servers filled in where it named none. Raises NotRunning.

        Serving lives without a broker: `broker_needed` False leaves it as it is.
        """
        found = self.endpoints(broker_needed=broker_needed)
        kafka = self._config.kafka.model_copy(update={"bootstrap_servers": found.bootstrap_servers})
        redis = self._config.redis.model_copy(update={"url": found.redis_url})
        return self._config.model_copy(update={"kafka": kafka, "redis": redis})

    def status(self) -> list[Status]:
        """Servers and services: store, broker, trainers, serving; changes nothing."""
        state = self._file.read()
        lines = []
        if self._store_is_configured:
            where = without_password(self._config.redis.url) or ",".join(self._config.redis.sentinels)
            lines.append(Status("store", "Redis", "configured", where, ""))
        elif not state.of("store"):
            lines.append(Status("store", "Redis", "not started", "", ""))
        if self._broker_is_configured:
            lines.append(Status("broker", "Kafka", "configured", self._config.kafka.bootstrap_servers, ""))
        elif not state.of("broker"):
            lines.append(Status("broker", "Kafka", "not started", "", ""))
        for entry in state.entries:
            health: Health = "running" if process.is_alive(entry.process) else "dead"
            alarm = self._alarm(entry) if entry.kind == "trainer" else ""
            seen = (entry.address, entry.note, entry.process.pid, entry.process.log, alarm)
            lines.append(Status(entry.kind, entry.name, health, *seen))
        return sorted(lines, key=lambda line: _ORDER.index(line.kind))

    def _alarm(self, entry: Started) -> str:
        own, number = self._config.trainer.alarm_file, int(entry.name.rpartition(" ")[2])
        path = Path(own) if own else services.alarm_file(self._local.state_dir, number)
        return services.alarm(entry.name, path)

    def __enter__(self) -> Self:
        try:
            self.start_servers()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def _store_is_configured(self) -> bool:
        return bool(self._config.redis.url or self._config.redis.sentinels)

    @property
    def _broker_is_configured(self) -> bool:
        return bool(self._config.kafka.bootstrap_servers)

    def _store(self, old_port: int) -> Server:
        program = find_store_program(self._local.store_server, self._environ)
        folder = self._local.state_dir / "redis"
        module = choose_module(program.program, folder, self._config.redis.backend, self._environ)
        port = choose("[local] redis_port", self._local.redis_port, old_port or self._usual(_REDIS_PORT))
        return RedisServer(program, folder, port, module)

    def _broker(self, old_port: int) -> Server:
        port = choose("[local] kafka_port", self._local.kafka_port, old_port or self._usual(_KAFKA_PORT))
        return choose_broker(self._local, port, self._environ)

    def _usual(self, port: int) -> int:
        return 0 if self._ephemeral else port

    def _ensure(self, kind: str, make: Callable[[int], Server]) -> None:
        entry = self._file.read().of(kind)
        self._start_unless_alive(entry, make)

    def _ensure_named(self, name: str, make: Callable[[int], Server]) -> None:
        entry = next((entry for entry in self._file.read().entries if entry.name == name), None)
        self._start_unless_alive(entry, make)

    def _start_unless_alive(self, entry: Started | None, make: Callable[[int], Server]) -> None:
        if entry and self._is_kept(entry):
            return
        server = make(entry.port if entry else 0)
        record = server.start()
        # Written down before waiting: if we are killed now, `down` still finds it.
        self._file.add(Started(server.kind, server.name, record, server.address, server.port, server.note), entry)
        await_answer(server, record, self._local.start_timeout_s, self._local.stop_timeout_s, self._stopping)

    def _is_kept(self, entry: Started) -> bool:
        """Whether a recorded process runs and listens; one that is still starting is waited for."""
        listens = Deadline(self._local.start_timeout_s).wait(
            lambda: not process.is_alive(entry.process) or not entry.port or accepts(entry.port)
        )
        if not listens:
            raise StartFailed(
                f"{entry.name} runs (pid {entry.process.pid}) but does not listen on port {entry.port}: "
                f"see {entry.process.log}, or run `towline down` and `towline up`"
            )
        return process.is_alive(entry.process)

    def _alive(self, state: State, kind: str, key: str) -> Started:
        entry = state.of(kind)
        if entry is None or not process.is_alive(entry.process):
            has = f"the local {kind} ({entry.name}) is dead" if entry else f"no local {kind} runs"
            raise NotRunning(f"{has} and {key} names none: run `towline up`, or set {key}")
        return entry


def _trainer(config: TowlineConfig, number: int, _old_port: int) -> Server:
    return services.trainer(config, number)
