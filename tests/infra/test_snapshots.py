"""`towline snapshot` as users meet it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from embedding_store.contract import Range, Source
from embedding_store.redis_store.registered import RegisteredStore
from embedding_store.settings import RedisSettings
from embedding_store.snapshots.restore import opened_registered
from infra.cli import app
from infra.errors import InfraError
from infra.snapshots import excluded_ranges
from tests.flushes import SOURCE, begin, contents, flush_of
from tests.infra.test_cli import towline
from tests.servers import RedisServer, server_names
from tests.trainer.small import MODEL

SPEC = MODEL.tables()["item"]
CLICKS, OTHER = Source("V1-_x", 0), Source("V1-_x", 3)


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.servers) for name in (server_names()[0], "module")])
def store(
    request: pytest.FixtureRequest,
    server_of: Callable[[str], RedisServer],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[RegisteredStore]:
    """An empty store, which ./towline.toml names."""
    server = server_of(request.param)
    server.command("FLUSHALL")
    (tmp_path / "towline.toml").write_text(f'[redis]\nurl = "{server.url}"\n[kafka]\ntopic = "events"\n')
    monkeypatch.chdir(tmp_path)
    opened = opened_registered(RedisSettings(url=server.url))
    yield opened
    opened.close()


def run(*arguments: str) -> str:
    """Standard output of a command that does not fail."""
    result = CliRunner().invoke(app, ["snapshot", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(*arguments: str) -> str:
    """The sentence of one that does."""
    with pytest.raises(InfraError) as caught:
        CliRunner().invoke(app, ["snapshot", *arguments], catch_exceptions=False)
    return str(caught.value)


def test_create_list_and_restore(store: RegisteredStore, tmp_path: Path) -> None:
    assert run("list") == f"no snapshots in {tmp_path}/.towline/snapshots\n"
    assert refused("create") == "the store has no tables yet: there is nothing to take a snapshot of"
    begin(store, SPEC)
    store.apply("item", flush_of([1, 2], 0, 3, counts=[1, 2]))
    before = contents(store, "item")
    made = run("create", "first").splitlines()
    assert made[0].startswith("snapshot first: ")
    assert f"UTC, 3 events, 0.0 MB, {SPEC.shards} shards (one cut), {store.backend} backend" in made[0]
    assert made[1] == f"in {tmp_path}/.towline/snapshots/first"
    named = run("create").splitlines()[1]
    assert Path(named.removeprefix("in ")).is_dir()
    assert run("list").startswith("first ")
    assert "there is a snapshot 'first'" in refused("create", "first")
    assert "no snapshot 'frist'" in refused("restore", "frist")

    store.apply("item", flush_of([1, 3], 3, 6, counts=[1, 2]))
    shown = run("restore", "first", "--exclude", "events:0:4-4", "--exclude", "clicks:0:9-12").splitlines()
    assert shown[1:] == [
        "source clicks:0 goes on at offset 3",
        "records 4 to 4 of source clicks:0 are left out",
        "records 9 to 12 of source clicks:0 are left out",
    ]
    assert contents(store, "item") == before
    assert store.excluded() == (Range(SOURCE, 4, 5), Range(SOURCE, 9, 13))
    assert "has learned source clicks:0 up to record 2" in refused("restore", "first", "--exclude", "clicks:0:2-2")

    store.apply("item", flush_of([1], 3, 6, counts=[1], generation=store.generation()))
    shown = run("restore", "first", "--no-replay", "--drop-excluded").splitlines()
    assert shown[1:] == ["source clicks:0 goes on at offset 6", "3 records were skipped, which every shard notes"]
    assert {s.skipped for s in store.status("item")} == {3}


def test_a_damaged_snapshot_is_named(store: RegisteredStore, tmp_path: Path) -> None:
    begin(store, SPEC)
    run("create", "one", "--folder", str(tmp_path / "kept"))
    manifest = tmp_path / "kept" / "one" / "manifest.json"
    (tmp_path / "kept" / "one" / "item-0").write_bytes(b"")
    assert "kept/one/item-0 is damaged: 0 bytes" in refused("restore", "one", "--folder", str(tmp_path / "kept"))
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"format": 2}))
    listing = CliRunner().invoke(app, ["snapshot", "list", "--folder", str(tmp_path / "kept")])
    assert (listing.exit_code, "is of format 2, this release reads 1" in listing.stdout) == (1, True)


def test_without_a_store_it_is_one_sentence(tmp_path: Path) -> None:
    answer = towline(tmp_path, "snapshot", "create")
    assert (answer.returncode, "run `towline up`, or set [redis] url" in answer.stderr) == (1, True)


def test_records_are_named_by_topic_id_or_by_the_one_topic() -> None:
    known = frozenset([CLICKS, OTHER, Source("history-ab", 0)])
    expected = [Range(OTHER, 5, 10)]
    assert excluded_ranges(["V1-_x:3:5-9"], "events", known) == expected
    assert excluded_ranges(["events:3:5-9"], "events", known) == expected
    assert excluded_ranges(["history-ab:0:0-0"], "events", known) == [Range(Source("history-ab", 0), 0, 1)]


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("events:0", "is not TOPIC:PARTITION:FROM-TO, as in events:0:1200-1350"),
        ("events:0:9-5", "is not TOPIC:PARTITION"),
        ("events:0:-5-9", "is not TOPIC:PARTITION"),
        ("evnts:0:5-9", "nothing was ever learned from source evnts:0, only from V1-_x:0, V1-_x:3, made-anew:0"),
        ("V1-_x:1:5-9", "nothing was ever learned from source V1-_x:1"),
        ("events:0:5-9", "topic ids that were learned from are V1-_x, made-anew: name one of them"),
    ],
)
def test_records_that_can_not_be_meant_are_refused(text: str, match: str) -> None:
    with pytest.raises(InfraError, match=match):
        excluded_ranges([text], "events", frozenset([CLICKS, OTHER, Source("made-anew", 0)]))
