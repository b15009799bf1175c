"""What a server must not lose: after SIGKILL and its append-only file, after a snapshot, after a replica was promoted.

Each way runs one random schedule against the reference in memory, with the server exchanged three times on the way. All
that a law can observe goes on as if nothing had happened, except the run id, which forces readers to scan. (The laws on
apply, reading, seeking and the feed hold against one process that lives; here are those that tell two lives apart.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from embedding_store.contract import EmbeddingStore, Flush
from embedding_store.errors import GenerationError
from embedding_store.memory import MemoryStore
from embedding_store.open import open_store
from embedding_store.settings import RedisSettings
from embedding_store.spec import Adagrad, Add, TableSpec
from tests.clusters import RedisCluster, running_cluster, until
from tests.flushes import SOURCE, begin, contents, flush_of, outcomes, whole_state
from tests.servers import RedisServer, free_port, running, server_names

ALWAYS = ("--appendonly", "yes", "--appendfsync", "always")
SPECS = (
    TableSpec(name="item", dim=5, shards=3, optimizer=Adagrad(), initial_std=0.1, seed=4),
    TableSpec(name="tower", kind="dense", dim=16, shards=1, optimizer=Add()),
    TableSpec(name="history", kind="sequence", length=3, shards=2),
)


@dataclass
class Life:
    """A server that may die and come back, perhaps as another process at another address."""

    name: str
    folder: Callable[[], Path]
    stack: ExitStack
    options: tuple[str, ...]  # of every server
    backend: str
    stores: list[EmbeddingStore] = field(default_factory=list)

    def connect(self, url: str, *, cluster: bool = False) -> EmbeddingStore:
        self.stores.append(open_store(RedisSettings(url=url, cluster=cluster, backend=self.backend)))
        return self.stores[-1]

    def start(self, *options: str) -> RedisServer:
        return self.stack.enter_context(running(self.name, self.folder(), *self.options, *options, port=free_port()))


class AppendOnlyFile(Life):
    """fsync always: what was answered is on the disk when the process is shot."""

    def first(self) -> EmbeddingStore:
        self.server = self.start(*ALWAYS)
        return self.connect(self.server.url)

    def again(self) -> EmbeddingStore:
        """The same client goes on."""
        self.server.kill()
        self.server.start()
        return self.stores[0]


class Snapshot(Life):
    """SAVE, an orderly end, and a start from the file."""

    def first(self) -> EmbeddingStore:
        self.server = self.start()
        return self.connect(self.server.url)

    def again(self) -> EmbeddingStore:
        assert self.server.command("SAVE").startswith(b"+OK")
        process = self.server.process
        assert process is not None
        process.terminate()
        process.wait(20)
        self.server.start()
        return self.stores[0]


class Promotion(Life):
    """A replica in step with its master, which is shot; clients are pointed to the replica, now master."""

    def first(self) -> EmbeddingStore:
        self.server = self.start()
        self.replica = self._replica()
        return self.connect(self.server.url)

    def again(self) -> EmbeddingStore:
        offset = self.server.command("INFO", "replication").split(b"master_repl_offset:")[1].split(b"\r\n")[0]
        until(lambda: b"slave_repl_offset:" + offset in self.replica.command("INFO", "replication"))
        self.server.kill()
        assert self.replica.command("REPLICAOF", "NO", "ONE").startswith(b"+OK")
        self.server, self.replica = self.replica, self._replica(of=self.replica)
        return self.connect(self.server.url)

    def _replica(self, of: RedisServer | None = None) -> RedisServer:
        replica = self.start("--repl-diskless-sync-delay", "0")
        replica.command("REPLICAOF", "127.0.0.1", str((of or self.server).port))
        until(lambda: b"master_link_status:up" in replica.command("INFO", "replication"))
        return replica


class ClusterFiles(Life):
    """All masters of a Cluster at once, from their append-only files."""

    def first(self) -> EmbeddingStore:
        options = (*self.options, *ALWAYS)
        self.cluster: RedisCluster = self.stack.enter_context(running_cluster(self.name, self.folder(), *options))
        return self.connect(self.cluster.url, cluster=True)

    def again(self) -> EmbeddingStore:
        for node in self.cluster.nodes:
            node.kill()
        for node in self.cluster.nodes:
            node.start()
        until(lambda: all(b"cluster_state:ok" in n.command("CLUSTER", "INFO") for n in self.cluster.nodes))
        return self.stores[0]


WAYS = [
    (way, name, backend)
    for backend in ("stock", "module")
    for way, names in (
        *((way, server_names()) for way in (AppendOnlyFile, Snapshot, Promotion)),
        (ClusterFiles, server_names()[:1]),
    )
    for name in names
]


@pytest.fixture(
    params=[pytest.param(w, marks=pytest.mark.servers, id=f"{w[0].__name__}-{w[1]}-{w[2]}") for w in WAYS]
)
def life(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    module_options: Callable[[], tuple[str, ...]],
) -> Iterator[Life]:
    way, name, backend = request.param
    options = module_options() if backend == "module" else ()
    with ExitStack() as stack:
        one = way(name, lambda: tmp_path_factory.mktemp("life"), stack, options, backend)
        yield one
        for store in one.stores:
            store.close()


def random_flush(spec: TableSpec, rng: np.random.Generator, step: int, generation: int) -> Flush:
    """A call of one record: gradients or appends, own events, now and then a forget."""
    keys = rng.choice(40, rng.integers(0, 12), replace=False).tolist()
    columns: dict[str, object] = {"gradients": rng.normal(size=(len(keys), spec.dim))}
    if spec.kind == "sequence":
        times = rng.integers(0, 100, len(keys))
        columns = {"appends": [(i, int(t), step << 16, 7, 0, 1.0) for i, t in enumerate(times)]}
    forget = rng.choice(40, int(rng.random() < 0.3), replace=False).tolist()
    counts = rng.integers(0, 2, len(keys))
    return flush_of(
        keys, step, step + 1, counts=counts, forget=forget, generation=generation, now_ms=10**12 + step, **columns
    )


def test_everything_survives_and_calls_go_on_exactly_once(life):
    store, reference = life.first(), MemoryStore()
    for one in (store, reference):
        for spec in SPECS:
            begin(one, spec)
        one.raise_generation()
        one.publish_model(b"model")
    rng = np.random.default_rng(0)
    last: dict[str, Flush] = {}
    for step in range(24):
        for spec in SPECS:
            last[spec.name] = random_flush(spec, rng, step, 1)
            assert outcomes(store.apply(spec.name, last[spec.name])) == {"applied"}
            reference.apply(spec.name, last[spec.name])
        if step % 7 != 5:
            continue
        run = store.run_id()
        cursors = {spec.name: store.changes(spec.name, None).cursor for spec in SPECS}
        store = life.again()
        assert store.run_id() != run
        assert (store.generation(), store.published_model()) == (1, b"model")
        for spec in SPECS:
            assert store.spec(spec.name) == spec
            assert store.status(spec.name) == reference.status(spec.name)
            table = contents(reference, spec.name)
            assert contents(store, spec.name) == table
            assert store.wait_for_changes([spec.name], [cursors[spec.name]], 5)
            changes = store.changes(spec.name, cursors[spec.name])
            assert (changes.rescan, sorted(changes.keys.tolist())) == (True, sorted(table))
            assert changes.cursor.positions == cursors[spec.name].positions
            assert not store.changes(spec.name, changes.cursor).rescan
            before = whole_state(store, spec.name)
            assert outcomes(store.apply(spec.name, last[spec.name])) == {"duplicate"}
            assert outcomes(store.apply(spec.name, random_flush(spec, rng, step + 2, 1))) == {"conflict"}
            with pytest.raises(GenerationError):
                store.apply(spec.name, random_flush(spec, rng, step + 1, 0))
            assert whole_state(store, spec.name) == before
    for spec in SPECS:
        assert store.status(spec.name)[0].offsets == {SOURCE: 24}
        assert contents(store, spec.name) == contents(reference, spec.name) != {}
