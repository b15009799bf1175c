"""Links: what a cut, a freeze and another way do to those who are connected."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from tests.chaos.proxy import HOST, Network

TIMEOUT_S = 10.0
SHORT_S = 0.2


class Echo:
    """A server that keeps what it gets and sends it back with its name."""

    def __init__(self, name: bytes) -> None:
        self._name = name
        self._socket = socket.create_server((HOST, 0))
        self.port = self._socket.getsockname()[1]
        self.got: list[bytes] = []
        self.arrived = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection:
            try:
                while data := connection.recv(1024):
                    self.got.append(data)
                    self.arrived.release()
                    connection.sendall(self._name + data)
            except OSError:
                return

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)  # wakes who accepts
        self._thread.join(TIMEOUT_S)
        self._socket.close()


def ask_once(port: int, text: bytes) -> bytes:
    with connected(port) as client:
        return asked(client, text)


@pytest.fixture
def network() -> Iterator[Network]:
    network = Network()
    yield network
    network.close()


@pytest.fixture
def echo() -> Iterator[Echo]:
    server = Echo(b"1:")
    yield server
    server.close()


def connected(port: int) -> socket.socket:
    return socket.create_connection((HOST, port), timeout=TIMEOUT_S)


def asked(connection: socket.socket, text: bytes) -> bytes:
    connection.sendall(text)
    return connection.recv(1024)


def test_bytes_pass(network, echo):
    with connected(network.link(echo.port).port) as client:
        assert asked(client, b"a") == b"1:a"
        assert asked(client, b"b") == b"1:b"


def test_a_cut_resets_and_refuses_until_it_is_healed(network, echo):
    link = network.link(echo.port)
    with connected(link.port) as client:
        assert asked(client, b"a") == b"1:a"
        link.cut()
        with pytest.raises(ConnectionResetError):
            client.recv(1024)
    with pytest.raises(ConnectionError):  # at once, or as soon as something is said
        ask_once(link.port, b"b")
    link.heal()
    with connected(link.port) as client:
        assert asked(client, b"c") == b"1:c"
    assert b"b" not in echo.got


def test_what_was_sent_into_a_frozen_link_arrives_late_though_its_sender_has_gone(network, echo):
    link = network.link(echo.port)
    with connected(link.port) as client:
        assert asked(client, b"a") == b"1:a"
        assert echo.arrived.acquire(timeout=TIMEOUT_S)
        link.freeze()
        client.settimeout(SHORT_S)
        with pytest.raises(TimeoutError):
            asked(client, b"late")
    with connected(link.port) as newcomer:
        newcomer.settimeout(SHORT_S)
        with pytest.raises(TimeoutError):
            asked(newcomer, b"new")
    assert echo.got == [b"a"]
    link.heal()
    assert echo.arrived.acquire(timeout=TIMEOUT_S)
    assert echo.arrived.acquire(timeout=TIMEOUT_S)
    assert sorted(echo.got) == [b"a", b"late", b"new"]


@pytest.mark.parametrize("reset", [True, False])
def test_another_way_is_for_newcomers_and_the_others_are_reset_on_demand(network, echo, reset):
    link, other = network.link(echo.port), Echo(b"2:")
    try:
        with connected(link.port) as client:
            assert asked(client, b"a") == b"1:a"
            link.lead_to(other.port, reset=reset)
            with connected(link.port) as newcomer:
                assert asked(newcomer, b"b") == b"2:b"
            if reset:
                with pytest.raises(ConnectionResetError):
                    asked(client, b"c")
            else:
                assert asked(client, b"c") == b"1:c"
    finally:
        other.close()
