"""Who keeps a store: what opening it as one or the other backend does."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from embedding_store.contract import EmbeddingStore
from embedding_store.errors import StoreMisconfigured
from embedding_store.module_store import lookups
from embedding_store.module_store.store import ModuleStore
from embedding_store.open import open_store
from embedding_store.redis_store.store import RedisStore
from embedding_store.settings import RedisSettings
from embedding_store.spec import TableSpec
from tests.clusters import running_cluster
from tests.flushes import begin, flush_of
from tests.servers import RedisServer, running, server_names

pytestmark = pytest.mark.servers
SPEC = TableSpec(name="item", dim=2, shards=3)


@pytest.fixture
def connect() -> Iterator[Callable[..., EmbeddingStore]]:
    """Opens stores with the settings given and closes them at the end."""
    stores: list[EmbeddingStore] = []

    def get(url: str, **settings: object) -> EmbeddingStore:
        stores.append(open_store(RedisSettings.model_validate({"url": url, **settings})))
        return stores[-1]

    yield get
    for store in stores:
        store.close()


@pytest.fixture
def plain(server_of: Callable[[str], RedisServer]) -> RedisServer:
    """An empty server without the module."""
    server = server_of(server_names()[0])
    server.command("FLUSHALL")
    return server


@pytest.fixture
def loaded(server_of: Callable[[str], RedisServer]) -> RedisServer:
    """An empty server with the module."""
    server = server_of("module")
    server.command("FLUSHALL")
    return server


def test_a_new_store_without_the_module_is_stock_and_says_why(plain, connect, caplog):
    with caplog.at_level(logging.INFO):
        store = connect(plain.url)
    assert isinstance(store, RedisStore)
    (record,) = caplog.records
    assert f"{plain.socket_path} is without the module loaded" in record.getMessage()
    assert "--loadmodule" in record.getMessage()
    assert plain.command("EXISTS", "towline:{store}:backend") == b":0\r\n"  # opening writes nothing
    begin(store, SPEC)
    assert plain.command("GET", "towline:{store}:backend") == b"$5\r\nstock\r\n"


def test_the_module_on_a_server_without_it(plain, connect):
    with pytest.raises(StoreMisconfigured, match=r"redis\.backend is module, and .*/s is without it loaded: .*--load"):
        connect(plain.url, backend="module")
    plain.command("SET", "towline:{store}:backend", "module")
    for backend in ("auto", "module"):
        with pytest.raises(StoreMisconfigured, match=r"kept by the module, and .*/s is without it loaded: .*--load"):
            connect(plain.url, backend=backend)
    plain.command("SET", "towline:{store}:backend", "tape")
    with pytest.raises(StoreMisconfigured, match="kept by backend 'tape', which this release does not know"):
        connect(plain.url)


def test_a_stock_store_stays_stock(loaded, connect):
    begin(connect(loaded.url, backend="stock"), SPEC)
    assert isinstance(connect(loaded.url), RedisStore)
    with pytest.raises(StoreMisconfigured, match="kept by the stock backend, it was opened as module: set redis"):
        connect(loaded.url, backend="module")
    loaded.command("DEL", "towline:{store}:backend")  # as a release before the module left it
    assert isinstance(connect(loaded.url), RedisStore)
    with pytest.raises(StoreMisconfigured, match="kept by the stock backend"):
        connect(loaded.url, backend="module")


def test_a_module_store_stays_with_the_module(loaded, connect):
    store = connect(loaded.url)
    assert isinstance(store, ModuleStore)
    begin(store, SPEC)
    assert isinstance(connect(loaded.url), ModuleStore)
    with pytest.raises(StoreMisconfigured, match="kept by the module backend, it was opened as stock: set redis"):
        connect(loaded.url, backend="stock")


def test_who_opened_an_empty_store_learns_who_keeps_it(loaded, connect):
    early = {backend: connect(loaded.url, backend=backend) for backend in ("stock", "module")}
    begin(connect(loaded.url, backend="module"), SPEC)
    with pytest.raises(StoreMisconfigured, match="kept by the module"):
        early["stock"].create(SPEC)
    with pytest.raises(StoreMisconfigured, match="kept by the module"):
        early["stock"].lookup("item", np.zeros(1, np.uint64))
    assert not early["module"].lookup("item", np.zeros(1, np.uint64)).found.any()


def test_an_account_that_may_not_ask_gets_the_stock_backend(plain, connect, caplog):
    plain.command("ACL", "SETUSER", "app", "on", ">secret", "~*", "+@all", "-command")
    try:
        with caplog.at_level(logging.INFO):
            assert isinstance(connect(plain.url, username="app", password="secret"), RedisStore)
        assert "does not permit a command" in caplog.text
    finally:
        plain.command("ACL", "DELUSER", "app")


def test_the_accounts_of_the_documentation_may_do_what_they_have_to(loaded, connect):
    text = (Path(__file__).parents[3] / "docs" / "STORE.md").read_text()
    accounts = [line.split() for line in text.splitlines() if line.startswith("ACL SETUSER ")]
    assert [words[2] for words in accounts] == ["trainer", "serving"]
    for words in accounts:
        assert loaded.command(*words) == b"+OK\r\n"
    try:
        trainer, serving = (connect(loaded.url, username=words[2], password="secret") for words in accounts)
        assert isinstance(trainer, ModuleStore)
        assert isinstance(serving, ModuleStore)
        begin(trainer, SPEC)
        trainer.apply("item", flush_of([1], 0, 5, counts=[1], gradients=np.ones((1, SPEC.dim))))
        for store in (trainer, serving):
            assert store.lookup("item", np.ones(1, np.uint64)).found.all()
            cursor = store.changes("item", None).cursor
            assert len(store.changes("item", cursor).keys) == 0
            assert not store.wait_for_changes(["item"], [cursor], 0.01)
            assert sum(status.rows for status in store.status("item")) == 1
        assert trainer.raise_generation() == 1
        for refused in (lambda: serving.create(SPEC), serving.raise_generation):
            with pytest.raises(StoreMisconfigured, match="does not permit a command"):
                refused()
    finally:
        loaded.command("ACL", "DELUSER", *(words[2] for words in accounts))


def test_a_cluster_in_which_one_node_lacks_the_module(tmp_path, module_options, connect):
    with running_cluster(server_names()[0], tmp_path, *module_options(), without=2) as cluster:
        assert isinstance(connect(cluster.url, cluster=True), RedisStore)
        named = rf"127\.0\.0\.1:{cluster.nodes[2].port} is without it loaded"
        with pytest.raises(StoreMisconfigured, match=named):
            connect(cluster.url, cluster=True, backend="module")


def test_a_server_that_came_back_without_the_module(tmp_path, module_options, connect):
    with running(server_names()[0], tmp_path, *module_options()) as server:
        store = connect(server.url)
        begin(store, SPEC)
        server.kill()
        server.options = ()
        server.start()
        with pytest.raises(
            StoreMisconfigured, match=r"/s does not have the module loaded that keeps the store: .*--load"
        ):
            store.lookup("item", np.zeros(1, np.uint64))


def test_a_lost_shard_is_made_again_and_owes_its_offsets(loaded, connect):
    store = connect(loaded.url)
    begin(store, SPEC)
    store.apply("item", flush_of(range(30), 0, 1, gradients=np.ones((30, 2))))
    loaded.command("DEL", "towline:{item:1}")
    rows = store.lookup("item", np.arange(30, dtype=np.uint64))
    assert 0 < rows.found.sum() < 30
    loaded.command("DEL", "towline:{item:1}")
    replies = store.apply("item", flush_of(range(30), 1, 2, gradients=np.ones((30, 2))))
    assert [reply.outcome for reply in replies] == ["applied", "conflict", "applied"]
    assert replies[1].offsets == {}
    assert [status.clock for status in store.status("item")] == [2, 0, 2]


def test_commands_of_few_rows_tell_the_same(loaded, connect, monkeypatch):
    """Lookups, changes and scans in many commands, one row or two each."""
    store = connect(loaded.url)
    begin(store, SPEC)
    cursor = store.changes("item", None).cursor
    keys = np.arange(5000, dtype=np.uint64)
    store.apply("item", flush_of(keys.tolist(), 0, 1, gradients=np.ones((5000, 2)), counts=[1] * 5000))
    store.apply("item", flush_of([7], 1, 2, forget=[8]))
    want = store.lookup("item", keys, with_state=True), store.changes("item", cursor), store.changes("item", None)
    monkeypatch.setattr(lookups, "CHUNK_BYTES", 100)
    assert lookups.rows_per_command(SPEC, 0) == 2
    got = store.lookup("item", keys, with_state=True), store.changes("item", cursor), store.changes("item", None)
    np.testing.assert_array_equal(got[0].vectors, want[0].vectors)
    assert got[0].ids.tolist() == want[0].ids.tolist()
    for one, other in zip(got[1:], want[1:], strict=True):
        assert one.cursor == other.cursor
        assert one.deleted.tolist() == other.deleted.tolist()
        mine, theirs = np.argsort(one.keys), np.argsort(other.keys)
        assert one.keys[mine].tolist() == other.keys[theirs].tolist()
        assert one.rows.ids.take(mine).tolist() == other.rows.ids.take(theirs).tolist()
        np.testing.assert_array_equal(one.rows.vectors[mine], other.rows.vectors[theirs])
    assert want[1].deleted.tolist() == [8]
