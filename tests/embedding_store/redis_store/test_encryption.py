"""TLS, with a certificate made for the test, ended by a small proxy: not every server is built with TLS."""

import contextlib
import socket
import ssl
import subprocess
import threading

import pytest

from embedding_store.errors import StoreUnavailable
from embedding_store.spec import TableSpec
from tests.flushes import begin, flush_of, outcomes


@pytest.fixture
def certificate(tmp_path):
    files = tmp_path / "cert.pem", tmp_path / "key.pem"
    names = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *names, "-out", files[0], "-keyout", files[1]],
        check=True,
        capture_output=True,
    )
    return tuple(map(str, files))


class TlsFront:
    """Accepts TLS from clients that show the certificate and passes bytes on to a Unix socket."""

    def __init__(self, path: str, certificate: tuple[str, str]) -> None:
        self.path = path
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=certificate[0])
        self.context.load_cert_chain(*certificate)
        self.context.verify_mode = ssl.CERT_REQUIRED
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                threading.Thread(target=self.serve, args=(client,), daemon=True).start()

    def serve(self, client: socket.socket) -> None:
        with (
            contextlib.suppress(OSError),
            client,
            self.context.wrap_socket(client, server_side=True) as inner,
            socket.socket(socket.AF_UNIX) as server,
        ):
            server.connect(self.path)
            back = threading.Thread(target=self.pump, args=(server, inner), daemon=True)
            back.start()
            self.pump(inner, server)
            server.shutdown(socket.SHUT_RDWR)
            back.join()

    @staticmethod
    def pump(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)


def test_tls_with_a_client_certificate(start, connect, certificate):
    cert, key = certificate
    front = TlsFront(start().socket_path, certificate)
    try:
        url = f"rediss://127.0.0.1:{front.port}/0"
        store = connect(url, tls_ca_file=cert, tls_cert_file=cert, tls_key_file=key)
        begin(store, TableSpec(name="item", dim=2))
        assert outcomes(store.apply("item", flush_of([1], 0, 1, counts=[1]))) == {"applied"}
        for settings in ({"tls_cert_file": cert, "tls_key_file": key}, {"tls_ca_file": cert}):
            with pytest.raises(StoreUnavailable):  # nobody vouches for the server; the client shows nothing
                connect(url, **settings)
    finally:
        front.listener.close()
