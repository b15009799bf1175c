"""Snapshots: restored and replayed, a store holds the same bytes as one that was never restored."""

from __future__ import annotations

import hashlib
import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from embedding_store.contract import Range, Source
from embedding_store.errors import BadRequest, GenerationError, SnapshotError, StoreBeingRestored, StoreUnavailable
from embedding_store.memory import MemoryStore
from embedding_store.open import open_store
from embedding_store.redis_store import protocol
from embedding_store.settings import RedisSettings
from embedding_store.snapshots import create as creating
from embedding_store.snapshots.create import create
from embedding_store.snapshots.folder import listed, opened
from embedding_store.snapshots.manifest import FILE
from embedding_store.snapshots.restore import open_for, restore
from embedding_store.spec import Adagrad, Add, TableSpec
from tests.flushes import SOURCE, begin, contents, flush_of, outcomes, whole_state
from tests.servers import server_names

LIVES = {"ttl_s": 0.025, "max_rows": 12, "remember_events": 60}
SPECS = (
    TableSpec(name="item", dim=5, shards=3, optimizer=Adagrad(), initial_std=0.1, seed=4),
    TableSpec(name="short", dim=2, shards=2, optimizer=Adagrad(), admit_after=2, max_stubs=10, **LIVES),
    TableSpec(name="tower", kind="dense", dim=16, shards=1, optimizer=Add()),
    TableSpec(name="history", kind="sequence", length=3, shards=2),
)
SHARDS = sum(spec.shards for spec in SPECS)
SERVERS = [*server_names(), "cluster", "module", "module-cluster", *["module-valkey"] * ("valkey" in server_names())]
BOTH = [server_names()[0], "module"]
END = 18


def on(names):
    return pytest.mark.parametrize(
        "opener", [pytest.param(name, marks=pytest.mark.servers) for name in names], indirect=True
    )


def stream(spec: TableSpec):
    """One call a record, the same every time."""
    rng, calls = np.random.default_rng(len(spec.name)), []
    for step in range(END):
        keys = rng.choice(40, rng.integers(0, 12), replace=False).tolist()
        columns: dict[str, object] = {"gradients": rng.normal(size=(len(keys), spec.dim))}
        if spec.kind == "sequence":
            times = rng.integers(0, 100, len(keys))
            columns = {"appends": [(i, int(t), step << 16, 7, 0, 1.0) for i, t in enumerate(times)]}
        forget = rng.choice(40, int(rng.random() < 0.3), replace=False).tolist()
        counts = rng.integers(0, 2, len(keys))
        calls.append(flush_of(keys, step, step + 1, counts=counts, forget=forget, now_ms=10**12 + step, **columns))
    return calls


CALLS = {spec.name: stream(spec) for spec in SPECS}


def learn(store, start: int, stop: int) -> set[str]:
    """The calls [start, stop) of every table, at the store's generation."""
    generation, found = store.generation(), set()
    for step in range(start, stop):
        for spec in SPECS:
            found |= outcomes(store.apply(spec.name, replace(CALLS[spec.name][step], generation=generation)))
    return found


def begun(store):
    for spec in SPECS:
        begin(store, spec)
    return store


def everything(store):
    """All that a law can observe, but what a restore changes: generation and feed."""
    statuses = {spec.name: [replace(s, generation=0) for s in store.status(spec.name)] for spec in SPECS}
    return {spec.name: contents(store, spec.name) for spec in SPECS}, statuses, store.published_model()


@pytest.fixture(scope="module")
def expected():
    """Of a store that was never restored, after each call."""
    reference = begun(MemoryStore())
    reference.publish_model(b"model")
    states = [everything(reference)]
    for step in range(END):
        learn(reference, step, step + 1)
        states.append(everything(reference))
    return states


@on(SERVERS)
def test_a_restore_and_a_replay_end_as_if_nothing_had_happened(opener, expected, tmp_path):
    store, other = opener(), opener()
    begun(store).publish_model(b"model")
    learn(store, 0, 9)
    manifest = create(store, tmp_path, "nine")
    assert (manifest.behind, manifest.generation, len(manifest.shards)) == (0, 0, SHARDS)
    assert dict(manifest.lowest) == dict(manifest.highest) == {SOURCE: 9}
    old = store.changes("item", None).cursor
    learn(store, 9, END)
    store.publish_model(b"another")
    late = store.changes("item", None).cursor
    store.create(TableSpec(name="later", dim=2, optimizer=Adagrad()))
    before = everything(store)
    restored = restore(other, tmp_path, opened(tmp_path, "nine"))
    assert (restored.generation, restored.skipped, dict(restored.offsets)) == (2, 0, {SOURCE: 9})
    assert other.generation() == 2
    assert everything(other) == expected[9] != before
    assert sorted(other.tables()) == sorted(spec.name for spec in SPECS)
    for cursor in (old, late):
        assert other.wait_for_changes(["item"], [cursor], 5)
        changes = other.changes("item", cursor)
        assert (changes.rescan, sorted(changes.keys.tolist())) == (True, sorted(expected[9][0]["item"]))
    for generation in (0, 1):
        with pytest.raises(GenerationError):
            store.apply("item", replace(CALLS["item"][9], generation=generation))
    assert learn(store, 8, END) == {"duplicate", "applied"}
    after = everything(store)
    assert after == expected[END]
    assert other.changes("item", late).rescan


@on(SERVERS)
def test_shards_at_different_offsets_are_as_good(opener, expected, tmp_path, monkeypatch):
    """Somebody learns while each shard is exported: the replay makes up for it."""
    store, trainer = opener(), opener()
    begun(store).publish_model(b"model")
    learn(store, 0, 2)
    export, at = store.export_shard, iter(range(2, END))

    def busy(table, shard):
        step = next(at, None)
        if step is not None:
            learn(trainer, step, step + 1)
        return export(table, shard)

    monkeypatch.setattr(store, "export_shard", busy)
    monkeypatch.setattr(creating, "TRIES", 1)
    manifest = create(store, tmp_path, "busy", rest=lambda seconds: None)
    offsets = [shard.meta.offsets[SOURCE] for shard in manifest.shards]
    assert offsets == list(range(3, 3 + SHARDS))
    assert manifest.behind == SHARDS - 1
    assert (manifest.lowest[SOURCE], manifest.highest[SOURCE]) == (3, 2 + SHARDS)
    learn(trainer, 2 + SHARDS, END)
    restored = restore(store, tmp_path, manifest)
    assert dict(restored.offsets) == {SOURCE: 3}
    assert learn(store, 3, END) == {"duplicate", "applied"}
    assert everything(store) == expected[END]


@on(BOTH)
def test_shards_behind_are_exported_again_for_one_cut(opener, expected, tmp_path, monkeypatch):
    store, trainer = opener(), opener()
    begun(store).publish_model(b"model")
    export, at = store.export_shard, iter(range(4))

    def soon_at_rest(table, shard):
        step = next(at, None)
        if step is not None:
            learn(trainer, step, step + 1)
        return export(table, shard)

    monkeypatch.setattr(store, "export_shard", soon_at_rest)
    manifest = create(store, tmp_path, "again", rest=lambda seconds: None)
    assert (manifest.behind, dict(manifest.lowest)) == (0, {SOURCE: 4})
    learn(store, 4, 6)
    restore(store, tmp_path, manifest)
    assert everything(store) == expected[4]


@on(BOTH)
def test_without_replay_each_source_goes_on_where_the_store_stood(opener, expected, tmp_path):
    store = begun(opener())
    store.publish_model(b"model")
    learn(store, 0, 5)
    manifest = create(store, tmp_path, "five")
    learn(store, 5, 12)
    restored = restore(store, tmp_path, manifest, replay=False)
    assert (restored.skipped, dict(restored.offsets)) == (7, {SOURCE: 12})
    for spec in SPECS:
        assert contents(store, spec.name) == expected[5][0][spec.name]
        assert {(s.clock, s.skipped, s.offsets[SOURCE]) for s in store.status(spec.name)} == {(5, 7, 12)}
    assert learn(store, 11, 12) == {"duplicate"}
    assert learn(store, 12, END) == {"applied"}


@on(BOTH)
def test_a_store_that_lost_everything_is_restored(opener, expected, tmp_path, server_of, request):
    store = begun(opener())
    store.publish_model(b"model")
    learn(store, 0, 7)
    store.exclude([Range(SOURCE, 20, 30)])
    manifest = create(store, tmp_path, "seven")
    server_of(request.node.callspec.params["opener"]).command("FLUSHALL")
    empty = opener()
    assert empty.backend == manifest.backend
    restore(empty, tmp_path, manifest)
    assert everything(empty) == expected[7]
    assert empty.excluded() == (Range(SOURCE, 20, 30),)
    assert learn(empty, 7, END) == {"applied"}
    assert everything(opener()) == expected[END]


@on(BOTH)
def test_a_restore_that_was_interrupted_is_noticed_and_completed(opener, expected, tmp_path):
    store, other = opener(), opener()
    begun(store).publish_model(b"model")
    learn(store, 0, 6)
    manifest = create(store, tmp_path, "six")
    for stop in (0, 1, SHARDS - 1, SHARDS):
        learn(store, 6, 9)

        def die(step, stop=stop):
            if step.what.startswith("restor") and step.done == stop:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            restore(store, tmp_path, manifest, replay=False, told=die)
        for refused in (
            other.generation,
            lambda: other.create(SPECS[0]),
            lambda: create(other, tmp_path, "half"),
        ):
            with pytest.raises(StoreBeingRestored, match="run `towline snapshot restore six --no-replay` again"):
                refused()
        assert [one.name for one in listed(tmp_path)] == ["six"]
        restored = restore(other, tmp_path, manifest)
        assert other.generation() == restored.generation
        assert everything(other) == expected[6]
    learn(store, 6, 9)
    with pytest.raises(KeyboardInterrupt):
        restore(store, tmp_path, manifest, told=die)
    # without replay: up to where the store stood before it was half restored
    assert restore(other, tmp_path, manifest, replay=False).skipped == 3
    assert learn(store, 9, END) == {"applied"}


@on(BOTH)
def test_of_two_restores_at_once_the_later_one_wins(opener, expected, tmp_path):
    store, other = opener(), opener()
    begun(store).publish_model(b"model")
    learn(store, 0, 3)
    three = create(store, tmp_path, "three")
    learn(store, 3, 6)
    six = create(store, tmp_path, "six")

    def overtaken(step):
        if step.what.startswith("restoring") and step.done == 2:
            restore(other, tmp_path, three)

    with pytest.raises(StoreUnavailable, match="restored it; this restore was given up"):
        restore(store, tmp_path, six, told=overtaken)
    assert everything(store) == expected[3]
    assert learn(store, 3, END) == {"applied"}


KILLED = """
import os, signal, sys
from pathlib import Path
from embedding_store.settings import RedisSettings
from embedding_store.snapshots import create, folder, restore
def die(step):
    if step.done == 3 and (step.what.startswith("shard") or step.what.startswith("restoring")):
        os.kill(os.getpid(), signal.SIGKILL)
root = Path(sys.argv[3])
store = restore.opened_registered(RedisSettings(url=sys.argv[2]))
if sys.argv[1] == "create":
    create.create(store, root, "killed", told=die)
else:
    restore.restore(store, root, folder.opened(root, "good"), told=die)
"""


@on(BOTH)
def test_killed_in_the_middle_of_either(opener, expected, tmp_path, server_of, request):
    store = begun(opener())
    store.publish_model(b"model")
    learn(store, 0, 4)
    url = server_of(request.node.callspec.params["opener"]).url

    def killed(what: str) -> None:
        command = [sys.executable, "-c", KILLED, what, url, str(tmp_path)]
        assert subprocess.run(command, timeout=60, check=False).returncode == -signal.SIGKILL

    killed("create")
    assert len(list(tmp_path.iterdir())) == 1
    assert listed(tmp_path) == []
    manifest = create(store, tmp_path, "good")
    assert list(tmp_path.iterdir()) == [tmp_path / "good"]
    learn(store, 4, 8)
    killed("restore")
    with pytest.raises(StoreBeingRestored, match="restore good` again"):
        store.generation()
    restore(store, tmp_path, manifest)
    assert everything(store) == expected[4]
    assert learn(store, 4, END) == {"applied"}
    assert everything(store) == expected[END]


@on(BOTH)
def test_what_can_not_be_restored_is_refused_before_anything_is_touched(opener, tmp_path, monkeypatch):
    store = begun(opener())
    learn(store, 0, 4)
    create(store, tmp_path, "good")
    learn(store, 4, 6)

    def refused(match: str, error=SnapshotError, **options) -> None:
        before = [whole_state(store, spec.name) for spec in SPECS], store.generation()
        with pytest.raises(error, match=match):
            restore(store, tmp_path, opened(tmp_path, "good"), **options)
        assert ([whole_state(store, spec.name) for spec in SPECS], store.generation()) == before

    path = tmp_path / "good" / "item-1"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    refused("good/item-1 is damaged")
    path.write_bytes(whole[:-1])
    refused(f"good/item-1 is damaged: {len(whole) - 1} bytes")
    path.unlink()
    refused("good/item-1 can't be read: No such file")
    path.write_bytes(whole)

    file = tmp_path / "good" / FILE
    document = json.loads(file.read_bytes())

    def altered(**changes) -> None:
        file.write_text(json.dumps(document | changes))

    altered(backend="module" if store.backend == "stock" else "stock")
    refused(f"this one is kept by {store.backend}")
    altered(format=9)
    refused("manifest.json is of format 9, this release reads 1")
    altered(shards=document["shards"][1:])
    refused("its shards are not those of its tables")
    altered(name="bad")
    refused("is of snapshot 'bad'")
    file.write_text("{")
    refused("manifest.json is damaged")
    altered(tables=document["tables"] | {"item": document["tables"]["item"].replace('"dim":5', '"dim":6')})
    refused("does not fit: table 'item' is stored with another declaration: dim is 5, got 6")
    altered()
    monkeypatch.setattr("embedding_store.snapshots.restore.OWN", protocol.OWN + 1)
    refused(f"is of protocol {protocol.OWN}, this release's is {protocol.OWN + 1}")
    monkeypatch.undo()
    refused("has learned source clicks:0 up to record 3: records from 3 on", exclude=[Range(SOURCE, 3, 9)])
    refused("records 5 to 4", BadRequest, exclude=[Range(SOURCE, 5, 5)])
    with pytest.raises(SnapshotError, match=r"no snapshot 'goof' in .*, did you mean 'good'"):
        opened(tmp_path, "goof")
    with pytest.raises(SnapshotError, match=r"'\.\./x' is no name"):
        opened(tmp_path, "../x")
    with pytest.raises(SnapshotError, match="there is a snapshot 'good'"):
        create(store, tmp_path, "good")
    refuse_by_version(store, tmp_path, document, refused)


def refuse_by_version(store, root: Path, document, refused) -> None:
    """The smallest shard is written again as a server of the future would: the version behind a DUMP is higher."""
    shards = document["shards"]
    smallest = min(shards, key=lambda shard: shard["size"])
    path = root / "good" / smallest["file"]
    data = path.read_bytes()
    part = smallest["parts"][0][1]
    newer = data[: part - 10] + b"\xff\x7f" + data[part - 8 :]
    path.write_bytes(newer)
    digest = hashlib.sha256(newer).hexdigest()
    changed = [shard | {"sha256": digest} if shard is smallest else shard for shard in shards]
    (root / "good" / FILE).write_text(json.dumps(document | {"shards": changed}))
    refused("here can't read it: .*DUMP payload version")


@on([server_names()[0]])
def test_another_backend_is_refused_and_an_empty_store_takes_the_snapshots(opener, tmp_path, server_of):
    store = begun(opener())
    learn(store, 0, 2)
    manifest = create(store, tmp_path, "stock")
    module = server_of("module")
    module.command("FLUSHALL")
    settings = RedisSettings(url=module.url)
    taken = open_for(settings, manifest)
    assert taken.backend == "stock"
    restore(taken, tmp_path, manifest)
    assert everything(taken) == everything(store)
    taken.close()
    module.command("FLUSHALL")
    kept = open_store(settings)
    kept.create(SPECS[0])
    with pytest.raises(SnapshotError, match="that the stock backend kept, this one is kept by module"):
        open_for(settings, manifest)
    kept.close()


def test_excluded_ranges_are_joined_and_bounded(store):
    assert store.excluded() == ()
    a, b = Source("a:b", 0), Source("a", 1)
    store.exclude([Range(a, 5, 9), Range(b, 1, 2), Range(a, 2, 5), Range(a, 7, 8), Range(b, 3, 4)])
    assert store.excluded() == (Range(b, 1, 2), Range(b, 3, 4), Range(a, 2, 9))
    with pytest.raises(BadRequest, match="records 4 to 3 of source a:1 are none"):
        store.exclude([Range(b, 4, 4)])
    with pytest.raises(BadRequest, match=r"1001 ranges .* at most 1000"):
        store.exclude([Range(b, 2 * i, 2 * i + 1) for i in range(1001)])
    store.exclude([])
    assert store.excluded() == ()


@on(BOTH)
def test_exclusions_stay_and_are_dropped_on_demand_only(opener, tmp_path):
    store = begun(opener())
    learn(store, 0, 2)
    two = create(store, tmp_path, "two")
    learn(store, 2, 8)
    assert restore(store, tmp_path, two, exclude=[Range(SOURCE, 4, 6)]).excluded == (Range(SOURCE, 4, 6),)
    assert store.excluded() == (Range(SOURCE, 4, 6),)
    again = restore(store, tmp_path, two, exclude=[Range(SOURCE, 6, 7)])
    assert again.excluded == store.excluded() == (Range(SOURCE, 4, 7),)
    kept = create(store, tmp_path, "kept")
    assert kept.excluded_ranges == (Range(SOURCE, 4, 7),)
    assert restore(store, tmp_path, two, drop_excluded=True).excluded == store.excluded() == ()
    assert restore(store, tmp_path, kept).excluded == (Range(SOURCE, 4, 7),)
