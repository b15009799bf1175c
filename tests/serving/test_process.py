"""The service as a process: real sockets, a real Redis that is late, dies and comes back, and real signals."""

from __future__ import annotations

import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from embedding_store.open import open_store
from embedding_store.settings import RedisSettings
from native.identity import key_and_check
from tests.servers import RedisServer, free_port, running, server_binary
from tests.serving.conftest import EVENTS, MODEL, Writer
from tests.serving.test_refresher import until

pytestmark = pytest.mark.servers

PROGRAM = """
import json, sys
from dataclasses import dataclass
from embedding_store.settings import RedisSettings
from serving.main import run
from serving.settings import ServingSettings

@dataclass(frozen=True)
class Config:
    redis: RedisSettings
    serving: ServingSettings

redis, serving = map(json.loads, sys.argv[1:])
run(Config(RedisSettings(**redis), ServingSettings(**serving)))
"""


@dataclass
class Process:
    """A running service."""

    popen: subprocess.Popen[bytes]
    port: int
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def get(self, path: str, **options: Any) -> httpx.Response:
        return httpx.get(self.url + path, timeout=10, **options)

    def post(self, path: str, body: Any) -> httpx.Response:
        return httpx.post(self.url + path, json=body, timeout=10)

    def reasons(self) -> list[str]:
        """Why it isn't ready; `gone` if it does not answer."""
        try:
            answer = self.get("/readyz")
        except httpx.TransportError:
            return ["gone"]
        reasons: list[str] = [] if answer.status_code == 200 else answer.json()["reasons"]
        return reasons

    def signal(self, number: int) -> None:
        self.popen.send_signal(number)

    def exit_code(self, timeout_s: float = 20) -> int:
        return self.popen.wait(timeout_s)


@contextmanager
def serving(folder: Path, redis: str | RedisSettings, **settings: Any) -> Iterator[Process]:
    """A service over the Redis at a URL, killed at the end if it still runs."""
    import json

    port = settings.pop("port", None) or free_port()
    settings = {"port": port, "max_lag_s": 1, "drain_s": 0.5, **settings}
    log = folder / f"serving-{port}.log"
    with log.open("wb") as stream:
        arguments = [json.dumps({"url": redis, "timeout_s": 1}), json.dumps(settings)]
        popen = subprocess.Popen([sys.executable, "-c", PROGRAM, *arguments], stdout=stream, stderr=stream)
    process = Process(popen, port, log)
    try:
        yield process
    finally:
        popen.kill()
        popen.wait()


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    with running("redis", tmp_path) as server:
        yield server


def fill(redis: RedisServer) -> Writer:
    writer = Writer(open_store(RedisSettings(url=redis.url)), MODEL)
    writer.declare()
    for event in EVENTS:
        writer.apply([event])
    return writer


def test_redis_is_late_dies_by_kill_9_and_comes_back_empty(tmp_path: Path) -> None:
    redis = RedisServer(server_binary("redis"), tmp_path)
    with serving(tmp_path, redis.url) as service:
        until(lambda: service.reasons() == ["loading", "store_down"], "up without a store", 30)
        assert service.get("/livez").status_code == 200

        redis.start()
        try:
            writer = fill(redis)
            until(lambda: not service.reasons(), "ready once there is a model", 30)
            item = service.get("/v1/embeddings/item/a%2Fb%20c").json()
            key = np.array([key_and_check(b"a/b c")[0]], np.uint64)
            assert np.array_equal(np.array(item["vector"], np.float32), writer.store.lookup("item", key).vectors[0])
            user = service.get("/v1/embeddings/user/u1").json()
            writer.apply([("u1", "i7", 1.0)])
            assert service.get("/v1/embeddings/user/u1").json()["events"] == user["events"] + 1
            until(lambda: service.get("/v1/embeddings/item/i7").json()["events"] == 2, "the feed reaches the mirror")
            assert service.post("/v1/recommend", {"user_id": "u1"}).json()["strategy"] == "personal"

            redis.kill()
            until(lambda: "x-stale" in service.get("/v1/embeddings/item/i1").headers, "noticed")
            stale = service.get("/v1/embeddings/item/a%2Fb%20c")
            assert (stale.status_code, stale.headers["x-stale"]) == (200, "1")
            assert stale.json()["vector"] == item["vector"]
            refused = service.get("/v1/embeddings/user/u1")
            assert (refused.status_code, refused.headers["content-type"]) == (503, "application/problem+json")
            assert refused.headers["retry-after"]
            fallback = service.post("/v1/recommend", {"user_id": "u1"})
            assert (fallback.status_code, fallback.headers["x-stale"]) == (200, "1")
            assert fallback.json()["strategy"] == "popular"
            until(lambda: service.reasons() == ["store_down", "lag"], "readiness degrades past the lag")
            assert service.get("/livez").status_code == 200
            writer.store.close()

            redis.start()
            again = Writer(open_store(RedisSettings(url=redis.url)), MODEL)
            again.declare()
            again.apply([("u9", "only-item", 1.0)])
            until(lambda: not service.reasons(), "ready again", 30)
            until(lambda: service.get("/v1/embeddings/item/only-item").status_code == 200, "the new row")
            assert service.get("/v1/embeddings/item/i1").status_code == 404, "rows of the dead server must not live on"
            assert "x-stale" not in service.get("/v1/embeddings/item/only-item").headers
            again.store.close()
        finally:
            redis.kill()


def test_a_store_that_hangs_does_not_hang_the_service(tmp_path: Path, redis: RedisServer) -> None:
    writer = fill(redis)
    with serving(tmp_path, redis.url) as service:
        until(lambda: not service.reasons(), "ready", 30)
        redis.pause()
        try:
            started = time.monotonic()
            assert service.get("/v1/embeddings/item/i1").status_code == 200
            assert service.get("/livez").status_code == 200
            assert time.monotonic() - started < 1
            assert service.post("/v1/recommend", {"user_id": "u1"}).headers["x-stale"] == "1"
            until(lambda: service.get("/v1/embeddings/user/u1").status_code == 503, "users are refused")
        finally:
            redis.resume()
        until(lambda: service.get("/v1/embeddings/user/u1").status_code == 200, "users again")
    writer.store.close()


def test_sigterm_drains_and_exits_with_0(tmp_path: Path, redis: RedisServer) -> None:
    """Readiness fails, requests go on; then the port closes, a request in flight is finished, and the process ends."""
    fill(redis).store.close()
    with serving(tmp_path, redis.url, drain_s=1.5) as service:
        until(lambda: not service.reasons(), "ready", 30)
        body = b'{"user_id":"u1","k":3}'
        head = "POST /v1/recommend HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        head += f"Content-Length: {len(body)}\r\n\r\n"
        with closing(socket.create_connection(("127.0.0.1", service.port))) as slow:
            slow.settimeout(10)
            slow.sendall(head.encode() + body[:5])
            started = time.monotonic()
            service.signal(signal.SIGTERM)
            until(lambda: service.reasons() == ["draining"], "readiness says so")
            assert service.get("/livez").status_code == 200
            assert service.post("/v1/recommend", {"user_id": "u1"}).status_code == 200
            until(lambda: service.reasons() == ["gone"], "the port closes")
            assert time.monotonic() - started >= 1.5
            assert service.popen.poll() is None, "a request is in flight"
            slow.sendall(body[5:])
            answer = slow.recv(65536)
            assert answer.startswith(b"HTTP/1.1 200")
        assert service.exit_code() == 0
        assert "Traceback" not in service.log.read_text()


@pytest.mark.parametrize("signals", [[signal.SIGINT], [signal.SIGTERM, signal.SIGTERM]])
def test_a_person_does_not_wait_for_the_drain(tmp_path: Path, redis: RedisServer, signals: list[int]) -> None:
    fill(redis).store.close()
    with serving(tmp_path, redis.url, drain_s=600) as service:
        until(lambda: not service.reasons(), "ready", 30)
        for number in signals[:-1]:
            service.signal(number)
            until(lambda: service.reasons() == ["draining"], "the first signal took effect")
        service.signal(signals[-1])
        assert service.exit_code(10) == 0


def test_sigterm_while_waiting_for_the_store_ends_too(tmp_path: Path) -> None:
    with serving(tmp_path, f"unix://{tmp_path}/nobody", drain_s=0) as service:
        until(lambda: service.reasons() == ["loading", "store_down"], "up", 30)
        service.signal(signal.SIGTERM)
        assert service.exit_code() == 0


def test_a_port_in_use_is_one_sentence_and_a_failure(tmp_path: Path) -> None:
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with serving(tmp_path, "redis://127.0.0.1:1", port=port) as service:
            assert service.exit_code(30) == 1
            said = service.log.read_text()
    assert (
        said == f"towline serving: port {port} of 127.0.0.1 is in use: stop what listens there, or set serving.port\n"
    )


def test_a_redis_that_would_evict_is_one_sentence_and_a_failure(tmp_path: Path) -> None:
    options = ("--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
    with running("redis", tmp_path, *options) as redis, serving(tmp_path, redis.url) as service:
        assert service.exit_code(30) == 1
        assert "noeviction" in service.log.read_text().splitlines()[-1]
        assert "Traceback" not in service.log.read_text()


def test_over_a_real_socket(tmp_path: Path, redis: RedisServer) -> None:
    """What only a real HTTP server decodes: paths, chunked bodies, announced lengths, connections that break off."""
    fill(redis).store.close()
    with serving(tmp_path, redis.url, max_body_bytes=4096, api_keys=["sesame"]) as service:
        until(lambda: not service.reasons(), "ready", 30)
        key = {"X-API-Key": "sesame"}
        assert service.get("/v1/model").status_code == 401
        for path, status in {
            "item/a/b%20c": 200,
            "item/a%2Fb%20c": 200,
            "user/u/slash%20%C3%A9": 200,
            "item/%ff": 422,
            "item/": 422,
            "item/none%0Asuch": 404,
        }.items():
            answer = service.get(f"/v1/embeddings/{path}", headers=key)
            assert answer.status_code == status, path
            assert answer.headers["x-request-id"]
            assert len(answer.headers.get_list("content-length")) == 1
        raw = service.get("/v1/embeddings/item/i1", headers=key | {"Accept": "application/octet-stream"})
        assert len(raw.content) == 4 * MODEL.dim

        common = "Host: x\r\nX-API-Key: sesame\r\nContent-Type: application/json\r\n"
        chunked = f"POST /v1/recommend HTTP/1.1\r\n{common}Transfer-Encoding: chunked\r\n\r\n".encode()
        assert _exchange(
            service.port, chunked + b"800\r\n" + b" " * 2048 + b"\r\n" + b"1000\r\n" + b" " * 4096 + b"\r\n"
        ).startswith(b"HTTP/1.1 413")
        announced = f"POST /v1/recommend HTTP/1.1\r\n{common}Content-Length: 99999999\r\n\r\n".encode()
        assert _exchange(service.port, announced).startswith(b"HTTP/1.1 413")
        for torso in (
            chunked + b"800\r\n",
            announced[:40],
            f"POST /v1/recommend HTTP/1.1\r\n{common}Content-Length: 100\r\n\r\n{{".encode(),
        ):
            with closing(socket.create_connection(("127.0.0.1", service.port))) as broken:
                broken.sendall(torso)
        assert service.get("/livez").status_code == 200
        assert "Traceback" not in service.log.read_text()


def test_clients_that_trickle_or_vanish_harm_nobody(tmp_path: Path, redis: RedisServer) -> None:
    """Slow loris, by heads and by bodies, and connections that are reset in the middle of a large answer."""
    fill(redis).store.close()
    with serving(tmp_path, redis.url) as service, ExitStack() as stack:
        until(lambda: not service.reasons(), "ready", 30)

        def in_flight() -> int:
            (line,) = (
                line
                for line in service.get("/metrics").text.splitlines()
                if line.startswith("towline_http_requests_in")
            )
            return int(float(line.split()[1])) - 1  # but this one

        head = b"POST /v1/recommend HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 99\r\n"
        slow = [stack.enter_context(closing(socket.create_connection(("127.0.0.1", service.port)))) for _ in range(100)]
        for n, connection in enumerate(slow):
            connection.sendall(head + b"\r\n{" if n % 2 else head[:-30])
        until(lambda: in_flight() == 50, "bodies that trickle are in flight")
        for byte in (b" ", b" "):
            for connection in slow[1::2]:
                connection.sendall(byte)
            started = time.monotonic()
            assert service.post("/v1/recommend", {"user_id": "u1"}).status_code == 200
            assert service.get("/livez").status_code == 200
            assert time.monotonic() - started < 2
        for connection in slow:
            connection.close()
        until(lambda: in_flight() == 0, "their places are free again")

        body = b'{"ids":[' + b",".join([b'"i1"'] * 4096) + b"]}"
        ask = b"POST /v1/embeddings/item:batch HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        for _ in range(20):
            with closing(socket.create_connection(("127.0.0.1", service.port))) as gone:
                gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closing resets
                gone.sendall(ask)
                assert gone.recv(16).startswith(b"HTTP/1.1 200")
        until(lambda: in_flight() == 0, "nothing is left of them")
        assert service.post("/v1/recommend", {"user_id": "u1"}).status_code == 200
        assert "Traceback" not in service.log.read_text()


def test_every_way_of_ranking_over_a_real_store(tmp_path: Path, redis: RedisServer) -> None:
    fill(redis).store.close()
    with serving(tmp_path, redis.url) as service:
        until(lambda: not service.reasons(), "ready", 30)
        best = service.post("/v1/recommend", {"user_id": "u1", "k": 3}).json()
        batch = service.post("/v1/recommend:batch", {"user_ids": ["u1", "u2"], "k": 3}).json()["results"]
        ids = [item["item_id"] for item in best["items"]]
        assert [item["item_id"] for item in batch[0]["items"]] == ids
        scores = service.post("/v1/score", {"user_id": "u1", "item_ids": ids}).json()["scores"]
        assert scores == [item["score"] for item in best["items"]]
        why = service.get("/v1/explain", params={"user_id": "u1", "item_id": ids[1]}).json()
        assert (why["rank"], why["score"]) == (2, scores[1])
        assert len(service.post("/v1/similar", {"item_ids": ids, "k": 2}).json()["items"]) == 2
        assert service.post("/v1/events", {"events": []}).status_code == 404
        redis.pause()  # the user's history can't be read: popularity, said to be stale
        try:
            assert service.post("/v1/score", {"user_id": "u1", "item_ids": ids}).headers["x-stale"] == "1"
            assert service.post("/v1/similar", {"item_ids": ids, "k": 2}).status_code == 200
            assert service.get("/v1/explain", params={"user_id": "u1", "item_id": ids[1]}).status_code == 503
        finally:
            redis.resume()
        assert "Traceback" not in service.log.read_text()


def _exchange(port: int, request: bytes) -> bytes:
    with closing(socket.create_connection(("127.0.0.1", port))) as connection:
        connection.settimeout(10)
        connection.sendall(request)
        return connection.recv(65536)


def test_serving_needs_neither_tensorflow_nor_a_kafka_client() -> None:
    others = {"tensorflow", "kafka", "ingest", "trainer", "infra"}
    program = f"import sys, serving.main; print(sorted({others} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True)
    assert done.stdout.strip() == "[]"
