"""What librdkafka's clients share: configuration from the settings, errors in the room's terms. Secrets never print."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from kafka import errors

from ingest.contract import IngestError, StreamMisconfigured
from ingest.kafka_client import METADATA_MAX_AGE_MS, RECONNECT_BACKOFF_MAX_MS, client_options, translate
from ingest.settings import KafkaSettings

if TYPE_CHECKING:
    from confluent_kafka import KafkaError


def client_configuration(settings: KafkaSettings) -> dict[str, Any]:
    """Properties that every client of librdkafka understands. Raises StreamMisconfigured."""
    if importlib.util.find_spec("confluent_kafka") is None:
        raise StreamMisconfigured(
            "kafka.client is 'librdkafka', and the package confluent-kafka is not installed: "
            "pip install 'towline[librdkafka]', or set kafka.client to 'kafka-python'"
        )
    client_options(settings)  # says what is missing or can't be read
    properties: dict[str, Any] = {
        "bootstrap.servers": ",".join(server.strip() for server in settings.bootstrap_servers.split(",")),
        "client.id": "towline",
        "log_level": 2,  # what befalls connections is told by callback too
        "security.protocol": settings.security_protocol,
        "socket.timeout.ms": settings.request_timeout_ms,
        "reconnect.backoff.max.ms": RECONNECT_BACKOFF_MAX_MS,
        "topic.metadata.refresh.interval.ms": METADATA_MAX_AGE_MS,
    }
    if settings.security_protocol.startswith("SASL"):
        properties |= {
            "sasl.mechanism": settings.sasl_mechanism,
            "sasl.username": settings.sasl_username,
            "sasl.password": settings.sasl_password.get_secret_value(),
        }
    if settings.security_protocol.endswith("SSL"):
        properties["ssl.ca.location"] = settings.ssl_ca_file or "probe"
        properties["ssl.endpoint.identification.algorithm"] = "https" if settings.ssl_check_hostname else "none"
        if settings.ssl_cert_file:
            properties["ssl.certificate.location"] = settings.ssl_cert_file
            properties["ssl.key.location"] = settings.ssl_key_file or settings.ssl_cert_file
    return properties


@contextmanager
def translated(doing: str, settings: KafkaSettings) -> Iterator[None]:
    """Turn the client's errors into StreamMisconfigured or StreamUnavailable, naming what was being done."""
    from confluent_kafka import KafkaException  # noqa: PLC0415  optional

    try:
        yield
    except KafkaException as error:
        raise meaning(error.args[0], doing, settings) from error


def meaning(error: KafkaError, doing: str, settings: KafkaSettings) -> IngestError:
    """One error of librdkafka in the room's terms: a broker's has the same number everywhere, its own are negative."""
    return translate(_kind(error.code())(error.str()), doing, settings)


def _kind(code: int) -> Any:
    from confluent_kafka import KafkaError  # noqa: PLC0415

    if code >= 0:
        return errors.for_code(code)
    own = {
        KafkaError._AUTHENTICATION: errors.SaslAuthenticationFailedError,
        KafkaError._INVALID_ARG: errors.KafkaConfigurationError,
        KafkaError._NOT_CONFIGURED: errors.KafkaConfigurationError,
        KafkaError._UNSUPPORTED_FEATURE: errors.UnsupportedVersionError,
        KafkaError._TIMED_OUT: errors.KafkaTimeoutError,
        KafkaError._FATAL: errors.FencedInstanceIdError,  # the one that a consumer of the classic protocol can have
        KafkaError._BAD_MSG: errors.CorruptRecordError,
    }
    return own.get(code, errors.KafkaConnectionError)
