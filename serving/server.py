"""The HTTP server's process: its socket, and how it ends."""

from __future__ import annotations

import errno
import logging
import signal
import socket
import time
from types import FrameType

import uvicorn

from serving.app import create_app
from serving.errors import StartupError
from serving.service import Service

log = logging.getLogger(__name__)

_BACKLOG = 2048
HURRY = signal.SIGUSR2
"""To one of several workers what SIGINT is to a service alone: a terminal sends that to all processes at once, and the
parent tells them."""


def listen_all(host: str, port: int, sockets: int) -> list[socket.socket]:
    """Several listening sockets of one port, among which the kernel spreads connections. Raises StartupError."""
    first = listen(host, port)  # alone: a port that another service listens on must be refused, not shared with it
    address, family = first.getsockname(), first.family
    first.close()
    listeners = []
    for _ in range(sockets):
        listeners.append(socket.create_server(address[:2], family=family, backlog=_BACKLOG, reuse_port=True))
    return listeners


def listen(host: str, port: int) -> socket.socket:
    """A listening TCP socket. Raises StartupError with the remedy."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server((str(address[0]), port), family=family, backlog=_BACKLOG)
    except socket.gaierror as error:
        raise StartupError(
            f"host '{host}' can't be resolved ({error.strerror}): set serving.host to an address"
        ) from error
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise StartupError(
                f"port {port} of {host} is in use: stop what listens there, or set serving.port"
            ) from error
        if error.errno == errno.EACCES:
            raise StartupError(f"port {port} of {host} needs privileges: set serving.port above 1023") from error
        raise StartupError(f"can't listen on port {port} of {host}: {error.strerror or error}") from error


class Server(uvicorn.Server):
    """uvicorn, ended in order. SIGTERM:

    1. readiness answers 503, so that load balancers stop sending; everything else is still answered;
    2. after `drain_s` the port closes, and requests in flight get `shutdown_s` to finish;
    3. the process exits with 0.

    SIGINT, a person at the keyboard, skips the wait; a second signal of either kind ends it.
    """

    _has_parent = False

    def __init__(self, service: Service) -> None:
        settings = service.settings
        config = uvicorn.Config(
            create_app(service),
            log_config=None,  # the composition root's
            access_log=False,  # 65 µs a request; metrics count instead
            lifespan="off",
            ws="none",
            server_header=False,
            timeout_graceful_shutdown=max(1, round(settings.shutdown_s)),
        )
        super().__init__(config)
        self._service = service
        self._exit_at_s: float | None = None

    def be_told_by_parent(self) -> None:
        """As one of several workers: SIGINT is the parent's to act on."""
        self._has_parent = True
        signal.signal(HURRY, self._hurry)

    def _hurry(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self._has_parent = False
        self.handle_exit(signal.SIGINT, frame)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """The loop runs: watch it."""
        await super().startup(sockets)
        self._service.metrics.loop.start()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Connections are closed, requests in flight awaited."""
        self._service.metrics.loop.stop()
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - uvicorn's signature
        """Signal handler: only sets fields, which `on_tick` reads. uvicorn's own would end by the signal: code 143."""
        if sig == signal.SIGINT and self._has_parent:
            return
        again = self._service.draining
        self._service.draining = True
        if again or sig == signal.SIGINT:
            self.force_exit = self.should_exit
            self.should_exit = True
        else:
            self._exit_at_s = time.monotonic() + self._service.settings.drain_s

    async def on_tick(self, counter: int) -> bool:
        """Called every 0.1 s; whether to stop."""
        drained = self._exit_at_s is not None and time.monotonic() >= self._exit_at_s
        return await super().on_tick(counter) or drained or self._service.fatal is not None
