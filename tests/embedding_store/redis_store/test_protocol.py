"""A store tells which protocol its writers speak, and writers of another are refused with the remedy."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from embedding_store.errors import SpecConflict, StoreMisconfigured
from embedding_store.redis_store import protocol
from embedding_store.redis_store.store import RedisStore
from embedding_store.spec import TableSpec
from tests.servers import RedisServer

SPEC = TableSpec(name="item", dim=4)


def test_another_releases_store_is_refused_with_the_remedy(
    server: RedisServer, connect: Callable[..., RedisStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    open_before = connect(server.url)
    monkeypatch.setattr(protocol, "OWN", 2)
    connect(server.url).create(SPEC)
    monkeypatch.setattr(protocol, "OWN", 1)
    with pytest.raises(
        StoreMisconfigured, match="a newer release: its protocol is 2, this one's is 1; use that release"
    ):
        connect(server.url)
    with pytest.raises(StoreMisconfigured, match="a newer release"):
        open_before.create(SPEC)


def test_a_store_older_than_the_number_is_of_the_first(
    server: RedisServer, connect: Callable[..., RedisStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(server.url).create(SPEC)
    server.command("DEL", "towline:{store}:protocol")
    connect(server.url).create(SPEC)
    server.command("DEL", "towline:{store}:protocol")
    monkeypatch.setattr(protocol, "OWN", 2)
    with pytest.raises(StoreMisconfigured, match="an older release: its protocol is 1, this one's is 2"):
        connect(server.url)


def test_two_deployments_with_different_tables_in_one_store(
    server: RedisServer, connect: Callable[..., RedisStore]
) -> None:
    connect(server.url).create(SPEC)
    with pytest.raises(SpecConflict, match="dim"):
        connect(server.url).create(TableSpec(name="item", dim=8))
