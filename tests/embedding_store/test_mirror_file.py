"""A mirror saved to a file and restored from it serves what it served, and catches up to what it missed."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from embedding_store import mirror_file
from embedding_store.errors import MirrorFileRefused
from embedding_store.memory import MemoryStore
from embedding_store.mirror import ItemMirror
from embedding_store.model import ModelSettings
from tests.embedding_store.test_shared_mirror import MODELS, PLAIN, opened
from tests.flushes import flush_of

EVERY = np.arange(0, 9000, dtype=np.uint64)


def learn(store: MemoryStore, model: ModelSettings, at: int, keys: list[int], forget: tuple[int, ...] = ()) -> None:
    rng = np.random.default_rng(at)
    flush = flush_of(
        keys,
        at,
        at + 1,
        gradients=rng.normal(size=(len(keys), 4)),
        events=30,
        forget=list(forget),
        counts=np.ones(len(keys), np.int64),
        positives=np.ones(len(keys)),
        identities=[(7 + key, f"id {key}".encode()) for key in keys],
    )
    store.apply("item", flush)
    if model.has_dense:
        rows = -(-len(ItemMirror(store, model).held().dense) // 64)
        gradients = rng.normal(size=(rows, 64))
        store.apply("dense", flush_of(list(range(rows)), at, at + 1, gradients=gradients, events=30))


def same(one: ItemMirror, other: ItemMirror) -> None:
    mine, theirs = one.items(EVERY), other.items(EVERY)
    assert np.array_equal(mine.found, theirs.found)
    np.testing.assert_allclose(mine.vectors, theirs.vectors, rtol=2e-6, atol=1e-7)
    for name in ("clock", "count", "updated_ms"):
        assert np.array_equal(getattr(mine, name), getattr(theirs, name)), name
    keys = EVERY[mine.found]
    names, popularity = [], []
    for mirror in (one, other):
        slots = mirror.slots(keys)
        names.append(mirror.describe(slots)[1])
        popularity.append(mirror.columns()[1][slots])
    assert names[0] == names[1]
    np.testing.assert_allclose(*popularity, atol=1e-5)
    assert (one.clock, one.size, one.event_time_ms) == (other.clock, other.size, other.event_time_ms)
    assert np.array_equal(one.gates.flat(), other.gates.flat())


def saved(mirror: ItemMirror, path: Path) -> mirror_file.MirrorFile:
    mirror.save(path, b"{}", 3, 17)
    file = mirror_file.read(path)
    assert file is not None
    assert (file.header.document, file.header.generation, file.header.as_of_ms) == (b"{}", 3, 17)
    return file


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_what_is_restored_is_what_was_saved_and_goes_on_from_there(model: ModelSettings, tmp_path: Path) -> None:
    store = opened(model)
    mirror = ItemMirror(store, model)
    learn(store, model, 0, list(range(9000)))
    mirror.refresh()
    learn(store, model, 1, list(range(100, 5000, 7)), forget=(1, 8999))
    mirror.refresh()
    path = tmp_path / "folder" / "mirror.bin"
    file = saved(mirror, path)
    assert [p.name for p in path.parent.iterdir()] == ["mirror.bin"]
    again = ItemMirror(store, model)
    again.restore(file)
    same(again, mirror)

    learn(store, model, 2, [5, 1, 9], forget=(700,))
    for one in (again, mirror):
        rows = one.refresh()
        assert rows == 4, "it goes on from the saved cursors"
    same(again, mirror)
    assert again.item(np.array([700], np.uint64)) is None


def test_a_feed_with_a_hole_is_made_up_for_by_a_scan(tmp_path: Path) -> None:
    store = opened(PLAIN)
    mirror = ItemMirror(store, PLAIN)
    learn(store, PLAIN, 0, list(range(50)))
    mirror.refresh()
    file = saved(mirror, tmp_path / "m")
    learn(store, PLAIN, 1, [1], forget=(7,))
    store.raise_generation()
    again = ItemMirror(store, PLAIN)
    again.restore(file)
    assert again.item(np.array([7], np.uint64)) is not None
    again.refresh()
    assert again.item(np.array([7], np.uint64)) is None
    assert again.size == 49


def test_no_file_is_none_and_any_damage_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mirror.bin"
    assert mirror_file.read(path) is None
    store = opened(PLAIN)
    mirror = ItemMirror(store, PLAIN)
    learn(store, PLAIN, 0, list(range(300)))
    mirror.refresh()
    saved(mirror, path)
    whole = path.read_bytes()
    rng = np.random.default_rng(0)

    def restored() -> ItemMirror:
        again = ItemMirror(store, PLAIN)
        file = mirror_file.read(path)
        assert file is not None
        again.restore(file)
        return again

    def refused() -> bool:
        try:
            restored()
        except MirrorFileRefused:
            return True
        return False

    for cut in [*range(40), *rng.integers(40, len(whole), 40).tolist(), len(whole) - 1]:
        path.write_bytes(whole[:cut])
        assert refused(), cut
    for at in [*range(30), *rng.integers(30, len(whole), 100).tolist()]:
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << int(rng.integers(8))]) + whole[at + 1 :])
        assert refused(), at
    with pytest.raises(MirrorFileRefused, match=str(path)):
        restored()
    path.write_bytes(whole[:-200])
    half, file = ItemMirror(store, PLAIN), mirror_file.read(path)
    assert file is not None, "its head is whole"
    with pytest.raises(MirrorFileRefused):
        half.restore(file)
    assert half.size == 0
    half.refresh()
    same(half, mirror)
    path.write_bytes(whole)
    same(restored(), mirror)


def test_rows_of_another_shape_are_refused(tmp_path: Path) -> None:
    store = opened(PLAIN)
    mirror = ItemMirror(store, PLAIN)
    mirror.refresh()
    file = saved(mirror, tmp_path / "m")
    wider = PLAIN.model_copy(update={"dim": 8})
    with pytest.raises(MirrorFileRefused, match="rows of 4 dimensions"):
        ItemMirror(opened(wider), wider).restore(file)


def test_a_file_written_while_the_mirror_goes_on_catches_up_to_it(tmp_path: Path) -> None:
    """Rows change, go, come back elsewhere and are new between the lots; the feed from the cursors makes it good."""
    store = opened(PLAIN)
    mirror = ItemMirror(store, PLAIN)
    learn(store, PLAIN, 0, list(range(0, 9000, 2)))
    mirror.refresh()
    ended, at = threading.Event(), 1

    def go_on() -> None:
        nonlocal at
        while not ended.is_set():
            keys = np.random.default_rng(at).choice(9000, 200, replace=False).tolist()
            learn(store, PLAIN, at, keys[:100], forget=tuple(keys[100:]))
            mirror.refresh()
            at += 1

    busy = threading.Thread(target=go_on)
    busy.start()
    try:
        for _ in range(5):
            before = at
            file = saved(mirror, tmp_path / "m")
            again = ItemMirror(store, PLAIN)
            again.restore(file)
    finally:
        ended.set()
        busy.join()
    assert at > before, "nothing went on meanwhile"
    again.refresh()
    mirror.refresh()
    same(again, mirror)


def test_a_save_that_fails_leaves_the_file_that_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(PLAIN)
    mirror = ItemMirror(store, PLAIN)
    learn(store, PLAIN, 0, list(range(9000)))
    mirror.refresh()
    path = tmp_path / "m"
    saved(mirror, path)
    before = path.read_bytes()
    lots = mirror._lots

    def interrupted(slots: int, scans: int):  # type: ignore[no-untyped-def]
        for lot in lots(slots, scans):
            yield lot
            store.raise_generation()
            mirror.refresh()

    monkeypatch.setattr(mirror, "_lots", interrupted)
    with pytest.raises(MirrorFileRefused, match="filled anew"):
        mirror.save(path, b"{}", 4, 18)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["m"]
