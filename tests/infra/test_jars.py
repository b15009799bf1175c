"""Kafka's jars: only bytes with the locked digest are ever used, whatever was interrupted or tampered with."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from infra.errors import LocalStackError, ServerMissing
from infra.local.jars import LOCK_FILE, Arrived, Jar, JarCache, cache_dir, read_lock
from infra.local.maven import POM, directly

CONTENT = {f"jar{i}": bytes([i]) * (1000 + i) for i in range(5)}
JARS = [Jar("org.example", name, "1.0", hashlib.sha256(data).hexdigest(), len(data)) for name, data in CONTENT.items()]


def fetch(jars: Sequence[Jar], folder: Path, arrived: Arrived) -> None:
    for jar in jars:
        (folder / jar.file_name).write_bytes(CONTENT[jar.artifact])
        arrived(jar.size)


def fetch_two_then_die(jars: Sequence[Jar], folder: Path, arrived: Arrived) -> None:
    fetch(jars[:2], folder, arrived)
    raise ServerMissing("the network is gone")


def fetch_tampered(jars: Sequence[Jar], folder: Path, arrived: Arrived) -> None:
    for jar in jars:
        (folder / jar.file_name).write_bytes(b"x" * jar.size)


def fetch_nothing_allowed(jars: Sequence[Jar], folder: Path, arrived: Arrived) -> None:
    raise AssertionError("nothing is missing")


def test_fetched_once_then_taken_from_the_cache(tmp_path: Path) -> None:
    paths = JarCache(tmp_path).ensure(JARS, [fetch])
    assert [path.read_bytes() for path in paths] == list(CONTENT.values())
    assert JarCache(tmp_path).ensure(JARS, [fetch_nothing_allowed]) == paths


def test_an_interrupted_fetch_is_resumed_with_what_is_missing(tmp_path: Path) -> None:
    asked: list[int] = []

    def rest(jars: Sequence[Jar], folder: Path, arrived: Arrived) -> None:
        asked.append(len(jars))
        fetch(jars, folder, arrived)

    with pytest.raises(ServerMissing, match=r"3 of Kafka's jars can't be had .*the network is gone"):
        JarCache(tmp_path).ensure(JARS, [fetch_two_then_die])
    JarCache(tmp_path).ensure(JARS, [rest])
    assert asked == [3]


def test_the_second_source_serves_what_the_first_has_not(tmp_path: Path) -> None:
    assert len(JarCache(tmp_path).ensure(JARS, [fetch_two_then_die, fetch])) == len(JARS)


def test_a_tampered_jar_is_refused_with_both_digests(tmp_path: Path) -> None:
    with pytest.raises(ServerMissing, match=rf"came with SHA-256 [0-9a-f]{{64}}, the lock file says {JARS[-1].sha256}"):
        JarCache(tmp_path).ensure(JARS, [fetch_tampered])
    assert not list(tmp_path.glob("*.jar"))


def test_a_jar_that_rotted_in_the_cache_is_fetched_again(tmp_path: Path) -> None:
    paths = JarCache(tmp_path).ensure(JARS, [fetch])
    paths[0].write_bytes(b"x" * JARS[0].size)
    assert JarCache(tmp_path).ensure(JARS, [fetch])[0].read_bytes() == CONTENT["jar0"]


def test_many_at_once_fetch_once(tmp_path: Path) -> None:
    fetched: list[int] = []

    def counted(jars: Sequence[Jar], folder: Path, arrived: Arrived) -> None:
        fetched.append(len(jars))
        fetch(jars, folder, arrived)

    threads = [threading.Thread(target=JarCache(tmp_path).ensure, args=(JARS, [counted])) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert fetched == [len(JARS)]
    assert not list(tmp_path.glob("fetch-*"))


def test_directly_from_a_configured_repository(tmp_path: Path) -> None:
    for jar in JARS:
        folder = tmp_path / "site" / "org" / "example" / jar.artifact / "1.0"
        folder.mkdir(parents=True)
        (folder / jar.file_name).write_bytes(CONTENT[jar.artifact])

    class Quiet(SimpleHTTPRequestHandler):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments, directory=str(tmp_path / "site"))  # type: ignore[arg-type]

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as site:
        threading.Thread(target=site.serve_forever).start()
        try:
            url = f"http://127.0.0.1:{site.server_port}/"
            assert len(JarCache(tmp_path / "cache").ensure(JARS, [directly(url)])) == len(JARS)
            absent = [JARS[0]._replace(version="2.0")]
            with pytest.raises(ServerMissing, match=r"org.example:jar0:2.0 did not come .* \(not found\)"):
                JarCache(tmp_path / "cache").ensure(absent, [directly(url)])
        finally:
            site.shutdown()


def test_no_network_is_told_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ServerMissing, match=r"did not come from \[local\] maven_repository \(ConnectionError\)"):
        JarCache(tmp_path).ensure(JARS, [directly("http://127.0.0.1:9")])


def test_the_lock_file_holds_what_the_pom_names() -> None:
    locked = {f"<artifactId>{jar.artifact}</artifactId>": jar for jar in read_lock(LOCK_FILE)}
    named = [line.strip() for line in POM.read_text(encoding="utf-8").splitlines()]
    asked = [locked[line] for line in named if line in locked]
    assert {jar.artifact for jar in asked} == {"kafka_2.13", "log4j-slf4j-impl"}
    assert all(f"<version>{jar.version}</version>" in named for jar in asked)
    assert all(len(jar.sha256) == 64 and jar.size > 0 for jar in locked.values())


def test_a_line_that_is_no_jar(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("# head\norg:artifact 12\n")
    with pytest.raises(LocalStackError, match="line 2 is not"):
        read_lock(tmp_path / "lock")


def test_the_cache_follows_xdg() -> None:
    assert cache_dir({"XDG_CACHE_HOME": "/x"}) == Path("/x/towline")
    assert cache_dir({}) == Path.home() / ".cache" / "towline"
