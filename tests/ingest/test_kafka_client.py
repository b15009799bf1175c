"""Client options and errors: secrets never print, refused credentials need a person."""

from __future__ import annotations

import contextlib
import gc
import logging
import socket
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient, errors
from pydantic import SecretStr

from ingest.contract import StreamMisconfigured, StreamUnavailable
from ingest.kafka_client import client_options, connect, translate
from ingest.settings import KafkaSettings

SASL = KafkaSettings(
    bootstrap_servers="a:1, b:2",
    security_protocol="SASL_PLAINTEXT",
    sasl_mechanism="PLAIN",
    sasl_username="someone",
    sasl_password=SecretStr("hush-hush"),
)


def test_options() -> None:
    options = client_options(SASL)
    assert options["bootstrap_servers"] == ["a:1", "b:2"]
    assert options["sasl_plain_password"] == "hush-hush"
    assert "sasl_mechanism" not in client_options(KafkaSettings(bootstrap_servers="a:1"))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"bootstrap_servers": ""}, "bootstrap_servers"),
        ({"sasl_username": ""}, "sasl_username"),
        ({"security_protocol": "SSL", "ssl_ca_file": "/nowhere.pem"}, "nowhere.pem"),
    ],
)
def test_what_is_missing_is_named(change: dict[str, str], says: str) -> None:
    with pytest.raises(StreamMisconfigured, match=says):
        client_options(SASL.model_copy(update=change))


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (errors.SaslAuthenticationFailedError("no"), StreamMisconfigured),
        (errors.TopicAuthorizationFailedError("no"), StreamMisconfigured),
        (errors.FencedInstanceIdError(), StreamMisconfigured),
        (errors.KafkaTimeoutError("late"), StreamUnavailable),
        (errors.KafkaConnectionError("gone"), StreamUnavailable),
    ],
)
def test_errors_are_told_apart_and_say_where(error: errors.KafkaError, kind: type[Exception]) -> None:
    told = translate(error, "doing it", SASL)
    assert type(told) is kind
    assert "a:1" in str(told)
    assert "hush" not in str(told)
    assert "hush" not in repr(SASL)


class _Refusing:
    """A client that can't bootstrap because its connections end with a refusal."""

    def __init__(self, **options: Any) -> None:
        self.net = options.pop("kafka_client")(**options)
        manager = self.net._manager
        connection = manager.get_connection("bootstrap-0")
        connection.close(errors.SaslAuthenticationFailedError("bad password"))
        raise errors.KafkaTimeoutError("Unable to bootstrap")


def test_refused_credentials_are_told_though_the_client_only_times_out() -> None:
    settings = SASL.model_copy(update={"bootstrap_servers": "127.0.0.1:1"})
    with pytest.raises(StreamMisconfigured, match="bad password"):
        connect(_Refusing, client_options(settings), "connecting", settings)


def test_the_admin_client_does_not_log_its_password(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        logging.getLogger("kafka.admin.client").debug("Starting KafkaAdminClient with configuration: %s", {"p": "hush"})
    assert "hush" not in caplog.text


def test_a_broker_that_is_away_costs_no_file_descriptors() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    nobody = KafkaSettings(bootstrap_servers=f"127.0.0.1:{port}", request_timeout_ms=1_000)
    gc.collect()
    gc.disable()  # what a collection would tidy away is a leak all the same
    try:
        before = _sockets()
        for _ in range(2):
            with pytest.raises(StreamUnavailable):
                connect(KafkaAdminClient, client_options(nobody), "asking", nobody)
        assert _sockets() - before == set()
    finally:
        gc.enable()


def _sockets() -> set[str]:
    found = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # that of the listing itself
            found.add(str(descriptor.readlink()))
    return {name for name in found if name.startswith("socket:")}
