"""The one file that imports the Redis client: connections, and the client's errors as the store's.

redis-py's connections are used for what they know (URLs, TLS, authentication), not its commands, pipelines or parsers:
those cost 5 to 9 µs of CPU a command and a Python object per argument and row. Bytes go straight to the socket and come
straight from it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection, parse_url
from redis.crc import key_slot
from redis.exceptions import (
    AskError,
    AuthenticationError,
    AuthorizationError,
    ClusterDownError,
    ExecAbortError,
    MasterDownError,
    MovedError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)

from embedding_store.errors import StoreError, StoreFull, StoreMisconfigured, StoreUnavailable
from embedding_store.redis_store.replies import DamagedStream, Replies, RowReplies
from embedding_store.redis_store.resp import Buffer, pack
from embedding_store.settings import RedisSettings

__all__ = ["MODULE_REMEDY", "Address", "Moved", "Refusal", "Wire", "address_of", "error_of", "slot_of"]

Refusal = ResponseError
"""An error reply, as a value: the replies behind it on the wire have still to be read."""

# redis-py publishes no types for these
_parse_url: Any = parse_url
_Tcp: Any = Connection
_Tls: Any = SSLConnection
_Unix: Any = UnixDomainSocketConnection

MODULE_REMEDY = "`python -m native.redis_module.compiler PATH` builds it, --loadmodule PATH starts a server with it"

_TRANSIENT = ("MISCONF", "NOREPLICAS", "LOADING", "MASTERDOWN", "UNBLOCKED", "BUSY")


class Moved(StoreUnavailable):
    """A Cluster slot is served elsewhere; never leaves the room: the call is routed again."""


class Address(NamedTuple):
    """Where a node listens: a Unix socket's path, or host and port."""

    host: str
    port: int  # 0: `host` is the path of a Unix socket

    def __str__(self) -> str:
        return f"{self.host}:{self.port}" if self.port else self.host


def slot_of(key: bytes) -> int:
    """Cluster slot of a key, by its hash tag."""
    return int(key_slot(key))


def address_of(url: str) -> Address:
    """Address in a redis://, rediss:// or unix:// URL. Raises StoreMisconfigured; the message never holds a secret."""
    options = _parsed(url)
    if "path" in options:
        return Address(options["path"], 0)
    return Address(options.get("host") or "localhost", int(options.get("port") or 6379))


class Wire:
    """One connection whose replies are read in the order of the commands. Not thread-safe."""

    def __init__(self, settings: RedisSettings, address: Address, *, sentinel: bool = False) -> None:
        """Connect, which includes TLS and authentication. Raises StoreUnavailable, StoreMisconfigured."""
        self.address = address
        self.run_id = ""
        self._connection: Any = _connection(settings, address, sentinel=sentinel)
        try:
            self._connection.connect()
        except (AuthenticationError, AuthorizationError, NoPermissionError) as e:
            raise StoreMisconfigured(f"{address} refused the credentials: {e}") from e
        except (RedisError, OSError) as e:
            raise StoreUnavailable(f"{address} can't be reached: {e}") from e
        # connecting is a dialogue: redis-py has read every reply of it, none is left in its parser
        self._replies = Replies(self._connection._sock.recv_into, self._connection._parser.parse_error)

    def send(self, buffers: Iterable[Buffer]) -> None:
        """Send packed commands. Raises StoreUnavailable; the wire is of no use afterwards."""
        if not self._open():
            raise StoreUnavailable(f"{self.address}: the connection was lost")
        try:
            self._connection.send_packed_command(buffers, check_health=False)
        except (RedisError, OSError) as e:
            raise StoreUnavailable(f"{self.address} can't be reached: {e}") from e

    def read(self) -> Any:
        """The next reply; an error reply is returned, as a Refusal. Raises StoreUnavailable on silence or loss."""
        return self._received(self._replies.take)

    def read_blobs(self) -> Any:
        """As `read`, with strings as (bytes,) uint8 arrays, received in place; see `Replies.take_blobs`."""
        return self._received(self._replies.take_blobs)

    def read_rows(self, rows: RowReplies, n: int) -> None:
        """Add the next reply, to HMGET of n fields, to `rows`. Raises as `checked` does, and StoreUnavailable."""
        self.checked([self._received(lambda: self._replies.take_rows(rows, n))])

    def _received(self, take: Callable[[], Any]) -> Any:
        try:
            reply = take()
        except (OSError, DamagedStream) as e:
            self.close()
            raise StoreUnavailable(f"{self.address}: {e}; what was sent may or may not have been done") from e
        if isinstance(reply, (AuthenticationError, AuthorizationError)):
            raise StoreMisconfigured(
                f"{self.address} asks for credentials: {reply}; set redis.username and password"
            ) from reply
        if isinstance(reply, RedisError) and not isinstance(reply, ResponseError):
            raise StoreUnavailable(f"{self.address} refuses for now: {reply}") from reply
        return reply

    def ask(self, *commands: bytes) -> list[Any]:
        """Send commands in one go, read their replies. Raises on the first refusal, after reading them all."""
        self.send([b"".join(commands)])
        return self.checked([self.read() for _ in commands])

    def call(self, *arguments: bytes | str | int) -> Any:
        """One command, its reply."""
        return self.ask(pack(*arguments))[0]

    def checked(self, replies: list[Any]) -> list[Any]:
        """The replies, unless one is a refusal: then the first is raised as an error of the store."""
        for reply in replies:
            if isinstance(reply, ResponseError):
                raise error_of(reply, self.address) from reply
        return replies

    def stale(self) -> bool:
        """Whether an idle wire was closed by the other side, or holds bytes that nobody asked for."""
        if not self._open() or self._replies.waiting:
            return True
        try:
            return bool(self._connection.can_read(0))
        except (RedisError, OSError):
            return True

    def _open(self) -> bool:
        # redis-py connects a lost connection again by itself: to a server that was not checked, perhaps another run
        return self._connection._sock is not None

    def close(self) -> None:
        """Idempotent."""
        with contextlib.suppress(RedisError, OSError):
            self._connection.disconnect()


def error_of(refusal: ResponseError, address: Address) -> StoreError:
    """An error reply as an error of the store."""
    text = str(refusal)
    if isinstance(refusal, MovedError):
        return Moved(f"{address}: slot moved to {refusal.node_addr}")
    if isinstance(refusal, OutOfMemoryError) or (isinstance(refusal, ExecAbortError) and "OOM" in text):
        return StoreFull(f"{address} is out of memory: {text}; raise maxmemory, or shrink the tables")
    if isinstance(refusal, NoPermissionError):
        return StoreMisconfigured(f"{address} does not permit a command that the store needs: {text}")
    transient = (ReadOnlyError, AskError, TryAgainError, ClusterDownError, MasterDownError, ExecAbortError)
    if isinstance(refusal, transient) or text.startswith(_TRANSIENT):
        return StoreUnavailable(f"{address} refuses for now: {type(refusal).__name__} {text}")
    if text.startswith("unknown command 'TOW."):  # redis-py leaves ERR out
        return StoreMisconfigured(f"{address} does not have the module loaded that keeps the store: {MODULE_REMEDY}")
    return StoreMisconfigured(f"{address} answered: {text}")


def _parsed(url: str) -> dict[str, Any]:
    try:
        return dict(_parse_url(url))
    except (ValueError, RedisError) as e:
        raise StoreMisconfigured(
            "redis.url must be redis://host:port/db, rediss://host:port/db or unix:///path/to/socket"
        ) from e


def _connection(settings: RedisSettings, address: Address, *, sentinel: bool) -> Any:
    options = _parsed(settings.url) if settings.url else {}
    kind = options.pop("connection_class", Connection)
    for place in ("host", "port", "path"):
        options.pop(place, None)
    options |= {
        "socket_timeout": settings.timeout_s,
        "socket_connect_timeout": settings.timeout_s,
        "protocol": 2,
    }
    if sentinel:
        options.pop("username", None)
        options.pop("db", None)
        options["password"] = settings.sentinel_password.get_secret_value() or None
    else:
        if settings.username:
            options["username"] = settings.username
        if settings.password.get_secret_value():
            options["password"] = settings.password.get_secret_value()
    if not address.port:
        return _Unix(path=address.host, **options)
    options |= {"host": address.host, "port": address.port, "socket_keepalive": True}
    tls_files = settings.tls_ca_file or settings.tls_cert_file
    if kind is not SSLConnection and not tls_files:
        return _Tcp(**options)
    if settings.tls_ca_file:
        options["ssl_ca_certs"] = settings.tls_ca_file
    if settings.tls_cert_file:
        options |= {"ssl_certfile": settings.tls_cert_file, "ssl_keyfile": settings.tls_key_file or None}
    return _Tls(**options)
