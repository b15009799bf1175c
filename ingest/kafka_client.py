"""What all Kafka clients share: options from the settings, and errors in the room's terms. Secrets never print."""

from __future__ import annotations

import importlib.util
import logging
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar
from uuid import UUID

from kafka import KafkaAdminClient, errors
from kafka.admin import MemberToRemove
from kafka.net.compat import KafkaNetClient
from kafka.net.inet import KafkaNetSocket

from ingest.contract import IngestError, StreamMisconfigured, StreamUnavailable
from ingest.settings import KafkaSettings

Client = TypeVar("Client")
# kafka-python 3.0.12 writes the admin client's whole configuration, password included, to its debug log
logging.getLogger("kafka.admin.client").addFilter(lambda record: "configuration" not in str(record.msg))

BOOTSTRAP_TIMEOUT_MS = 10_000
RECONNECT_BACKOFF_MAX_MS = 2_000
METADATA_MAX_AGE_MS = 5_000
"""New partitions and a topic made anew are seen this soon; the client's default is five minutes."""

_SCHEME = "towline"

_REFUSED = (
    errors.SaslAuthenticationFailedError,
    errors.UnsupportedSaslMechanismError,
    errors.IllegalSaslStateError,
    errors.AuthorizationError,
)
_MISCONFIGURED = (
    errors.KafkaConfigurationError,
    errors.FencedInstanceIdError,
    errors.InvalidSessionTimeoutError,
    errors.InvalidGroupIdError,
    errors.InvalidTopicError,
    errors.InvalidReplicationFactorError,
    errors.InvalidPartitionsError,
    errors.PolicyViolationError,
    errors.InconsistentGroupProtocolError,
    errors.UnsupportedCodecError,
    errors.UnsupportedVersionError,
)


def client_options(settings: KafkaSettings) -> dict[str, Any]:
    """Keyword arguments that every kafka-python client understands. Raises StreamMisconfigured."""
    if importlib.util.find_spec("crc32c") is None:
        raise StreamMisconfigured(
            "the package crc32c is missing, without which kafka-python reads ten times slower: pip install crc32c"
        )
    if not settings.bootstrap_servers:
        raise StreamMisconfigured("kafka.bootstrap_servers is empty; set it to host:port, or start the local stack")
    options: dict[str, Any] = {
        "bootstrap_servers": [server.strip() for server in settings.bootstrap_servers.split(",")],
        "client_id": "towline",
        "security_protocol": settings.security_protocol,
        "request_timeout_ms": settings.request_timeout_ms,
        "bootstrap_timeout_ms": min(BOOTSTRAP_TIMEOUT_MS, settings.request_timeout_ms),
        "reconnect_backoff_max_ms": RECONNECT_BACKOFF_MAX_MS,
        "metadata_max_age_ms": METADATA_MAX_AGE_MS,
        "proxy_url": f"{_SCHEME}://",
    }
    if settings.security_protocol.startswith("SASL"):
        if not (settings.sasl_mechanism and settings.sasl_username):
            raise StreamMisconfigured(
                f"kafka.security_protocol is {settings.security_protocol}; "
                "set kafka.sasl_mechanism, sasl_username and sasl_password too"
            )
        options |= {
            "sasl_mechanism": settings.sasl_mechanism,
            "sasl_plain_username": settings.sasl_username,
            "sasl_plain_password": settings.sasl_password.get_secret_value(),
        }
    if settings.security_protocol.endswith("SSL"):
        options["ssl_context"] = _ssl_context(settings)
    return options


def _ssl_context(settings: KafkaSettings) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=settings.ssl_ca_file or None)
        if settings.ssl_cert_file:
            context.load_cert_chain(settings.ssl_cert_file, settings.ssl_key_file or None)
    except OSError as error:  # SSLError is one
        raise StreamMisconfigured(
            f"{error} in kafka.ssl_ca_file {settings.ssl_ca_file!r}, ssl_cert_file {settings.ssl_cert_file!r} or "
            f"ssl_key_file {settings.ssl_key_file!r}; name readable PEM files"
        ) from error
    context.check_hostname = settings.ssl_check_hostname
    return context


def connect(kind: Callable[..., Client], options: dict[str, Any], doing: str, settings: KafkaSettings) -> Client:
    """A kafka-python client of that class. Raises StreamMisconfigured, StreamUnavailable.

    When the broker refuses the credentials, kafka-python 3.0.12 tries again until it gives up for time, and leaves its
    thread running. So the ends of its connections are watched for the true reason, and what is left over is closed.
    Often it even misses the broker's answer and sees only that the broker hangs up: twice, once a connection had come
    as far as authentication, is taken for a refusal.
    """
    made: list[Any] = []
    ends: list[Exception] = []

    def net_client(**configs: Any) -> Any:
        client = KafkaNetClient(**configs)
        connection = client._manager.get_connection

        def watched(*args: Any, **kwargs: Any) -> Any:
            found = connection(*args, **kwargs)
            found.close_future.add_errback(lambda error: ends.append(_true_end(found, error)))
            return found

        client._manager.get_connection = watched
        made.append(client)
        return client

    with translated(doing, settings):
        try:
            client = kind(**options, kafka_client=net_client)
        except (errors.KafkaError, OSError) as error:
            for left_over in made:
                left_over.close()
            refusals = [end for end in ends if isinstance(end, _REFUSED)]
            certain = [end for end in refusals if not isinstance(end, _HungUp)]
            raise (certain or (refusals if len(refusals) > 1 else [error]))[0] from error
    for in_use in made:
        del in_use._manager.get_connection  # the class's own again
    return client


def remove_member(settings: KafkaSettings, instance: str) -> None:
    """Make a static member leave its group at once, which a client leaves to its session; if the broker answers."""
    with suppress(errors.KafkaError, OSError):
        admin = KafkaAdminClient(**client_options(settings))
        try:
            admin.remove_group_members(settings.group, [MemberToRemove(group_instance_id=instance)])
        finally:
            admin.close()


class _DirectSocket(KafkaNetSocket):  # type: ignore[misc]  # kafka-python has no types
    """A socket without a proxy, closed if it does not get its connection.

    kafka-python 3.0.12 leaves such a socket to the garbage collector: while a broker is away, every attempt costs a
    file descriptor. It chooses the class by the proxy's scheme.
    """

    SCHEMES = (_SCHEME,)

    async def sock_connect(self, net: Any, sock: socket.socket, *args: Any, **kwargs: Any) -> socket.socket:
        try:
            connected: socket.socket = await super().sock_connect(net, sock, *args, **kwargs)
        except BaseException:  # GeneratorExit too: the client was closed meanwhile
            sock.close()
            raise
        return connected


class _HungUp(errors.SaslAuthenticationFailedError):  # type: ignore[misc]  # kafka-python has no types
    """The broker closed the connection while it was to authenticate."""


def _true_end(connection: Any, error: Exception) -> Exception:
    """What ended a connection."""
    began = connection.sasl_enabled and connection.broker_version is not None
    if began and not connection._init_future.succeeded() and isinstance(error, errors.KafkaConnectionError):
        return _HungUp("the broker hung up when it got the credentials")
    return error


@contextmanager
def translated(doing: str, settings: KafkaSettings) -> Iterator[None]:
    """Turn the client's errors into StreamMisconfigured or StreamUnavailable, naming what was being done."""
    try:
        yield
    except errors.KafkaError as error:
        raise translate(error, doing, settings) from error
    except (OSError, ssl.SSLError) as error:
        raise StreamUnavailable(f"{doing}: {error} ({settings.bootstrap_servers})") from error


def translate(error: errors.KafkaError, doing: str, settings: KafkaSettings) -> IngestError:
    """One error of the client in the room's terms."""
    where = f"{doing} at {settings.bootstrap_servers}"
    said = f"{type(error).__name__}: {error}"
    if isinstance(error, _REFUSED):
        return StreamMisconfigured(
            f"{where} was refused ({said}); check kafka.security_protocol {settings.security_protocol}, "
            f"sasl_mechanism {settings.sasl_mechanism!r}, sasl_username {settings.sasl_username!r}, the password, "
            "and what that user may do"
        )
    if isinstance(error, errors.FencedInstanceIdError):
        return StreamMisconfigured(
            f"{where}: another process of group {settings.group!r} has the same instance name and came later: this one "
            "ends; give each its own [trainer] instance, or none"
        )
    if isinstance(error, errors.InconsistentGroupProtocolError):
        return StreamMisconfigured(
            f"{where}: group {settings.group!r} has members that share partitions in another way, trainers of an older "
            "release or another program; stop them all first, or set another kafka.group"
        )
    if isinstance(error, _MISCONFIGURED):
        return StreamMisconfigured(f"{where} can't work as configured ({said}); change the [kafka] settings")
    return StreamUnavailable(f"{where} failed for now ({said})")


def topic_identity(settings: KafkaSettings, topic_id: UUID | None) -> str:
    """Identity of one incarnation of the topic: its UUID, or name and configured epoch on brokers without topic ids."""
    if topic_id is None or topic_id.int == 0:
        return f"{settings.topic}@{settings.topic_epoch}"
    return str(topic_id)
