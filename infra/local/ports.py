"""Loopback ports: who has them, and which are free."""

from __future__ import annotations

import socket

from infra.errors import PortInUse

LOOPBACK = "127.0.0.1"


def is_free(port: int) -> bool:
    """Whether a server could bind `port` on loopback now; ports in TIME_WAIT count as free, as they do for servers."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def ephemeral() -> int:
    """A port that was free a moment ago; a server that finds it taken after all reports that as its failure."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
    return port


def choose(key: str, fixed: int, preferred: int) -> int:
    """The port to start a server on.

    `fixed` is the one that the configuration names under `key`: used, or refused with PortInUse. With 0 there,
    `preferred` if free, else any free port.
    """
    if fixed:
        if not is_free(fixed):
            raise PortInUse(key, fixed)
        return fixed
    return preferred if preferred and is_free(preferred) else ephemeral()


def accepts(port: int, host: str = LOOPBACK) -> bool:
    """Whether somebody accepts connections there."""
    try:
        with socket.create_connection((host, port), timeout=1):
            return True
    except OSError:
        return False


def ask(port: int, request: bytes, size: int) -> bytes:
    """Sends `request` on a new connection and returns the first `size` bytes of the reply; b"" if there is none."""
    reply = b""
    try:
        with socket.create_connection((LOOPBACK, port), timeout=1) as connection:
            connection.sendall(request)
            while len(reply) < size and (part := connection.recv(size - len(reply))):
                reply += part
    except OSError:
        return b""
    return reply
