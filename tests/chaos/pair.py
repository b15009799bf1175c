"""A Redis master with an append-only file and a replica of it, whose roles change.

appendfsync is everysec, as in the local stack: what is acknowledged may be lost for up to two seconds when the machine
fails. With `always` a restarted server would never be behind, and the half of the protocol that heals a roll-back would
be tried by promotions alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from infra.local.ports import ephemeral
from native.redis_module.compiler import module_path
from tests.chaos.proxy import HOST, Link, Network
from tests.chaos.waiting import until
from tests.servers import RedisServer, server_binary, server_names

_OPTIONS = {
    "--appendonly": "yes",
    "--appendfsync": "everysec",
    "--auto-aof-rewrite-min-size": "4mb",  # so that it is rewritten on the way
    "--repl-diskless-sync-delay": "0",
    "--repl-backlog-size": "16mb",
    "--repl-timeout": "5",
    "--maxmemory-policy": "noeviction",
}


@dataclass
class RedisPair:
    """Two servers; `doors` are the links of those who want the master, and are led to it."""

    network: Network
    folder: Path
    backend: str
    doors: list[Link] = field(default_factory=list)

    def start(self) -> None:
        """Both, the second as a replica of the first."""
        options = [word for option in _OPTIONS.items() for word in option]
        if self.backend == "module":
            module = module_path()
            if module.path is None:
                raise AssertionError(f"the module can't be had: {module.why_not}")
            options += ["--loadmodule", str(module.path)]
        self._common = tuple(options)
        self.replication = self.network.link()
        servers = []
        for name in ("a", "b"):
            place = self.folder / name
            place.mkdir(parents=True)
            servers.append(RedisServer(server_binary(server_names()[0]), place, self._common, ephemeral()))
        self.master, self.replica = servers
        self.master.start()
        self.replication.lead_to(self.master.port, reset=False)
        self._start_as_replica(self.replica)

    def door(self) -> Link:
        """A new way to whoever is master."""
        self.doors.append(self.network.link(self.master.port))
        return self.doors[-1]

    def kill_master(self) -> None:
        """As a power cut does it, but for what the kernel still holds."""
        self.master.kill()

    def restart_master(self) -> None:
        """Start the killed master on its own append-only file."""
        self.master.options = self._common
        self.master.start()

    def in_step(self) -> bool:
        """Whether the replica follows and has all that the master has."""
        try:
            ours, theirs = self._replication_of(self.master), self._replication_of(self.replica)
        except OSError:
            return False
        return theirs.get("master_link_status") == "up" and ours["master_repl_offset"] == theirs["slave_repl_offset"]

    def promote(self) -> None:
        """The replica becomes master as it stands; the killed master comes back as its replica."""
        old = self._change_roles(reset=True)
        self._start_as_replica(old)

    def promote_beside_the_old(self, hold: Callable[[], None]) -> None:
        """The replica becomes master while the old one goes on serving those who are connected to it.

        `hold` is called meanwhile; then the old one is told to follow, and what it was given is gone.
        """
        old = self._change_roles(reset=False)
        hold()
        old.command("REPLICAOF", HOST, str(self.replication.port))

    def stop(self) -> None:
        """Idempotent."""
        for name in ("master", "replica"):
            if hasattr(self, name):
                getattr(self, name).kill()

    def _change_roles(self, *, reset: bool) -> RedisServer:
        self.replica.command("REPLICAOF", "NO", "ONE")
        self.master, self.replica = self.replica, self.master
        for door in self.doors:
            door.lead_to(self.master.port, reset=reset)
        self.replication.heal()
        self.replication.lead_to(self.master.port, reset=True)
        return self.replica

    def _start_as_replica(self, server: RedisServer) -> None:
        server.options = (*self._common, "--replicaof", f"{HOST} {self.replication.port}")
        server.start()

    def await_in_step(self) -> None:
        """Fails past a deadline."""
        until(self.in_step, "the replica to be in step with the master")

    @staticmethod
    def _replication_of(server: RedisServer) -> dict[str, str]:
        lines = server.command("INFO", "replication").decode().splitlines()
        return {name: value for name, colon, value in (line.partition(":") for line in lines) if colon}
