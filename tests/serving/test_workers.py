"""Several workers as processes: one mirror, one port, one /metrics, and any of them may be killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from embedding_store.open import open_store
from embedding_store.settings import RedisSettings
from tests.servers import RedisServer, running, server_binary
from tests.serving.conftest import EVENTS
from tests.serving.test_process import Process, fill, serving
from tests.serving.test_refresher import until
from tests.trainer.featured import learn

pytestmark = pytest.mark.servers


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    with running("redis", tmp_path) as server:
        yield server


def children(service: Process) -> list[int]:
    """The writer, then the workers in the order in which they were started."""
    task = Path(f"/proc/{service.popen.pid}/task/{service.popen.pid}/children")
    return [int(pid) for pid in task.read_text().split()]


def writer(service: Process) -> int:
    """Says so itself: what a process does is in no table."""
    (pid,) = set(children(service)) - set(workers(service))
    return pid


def workers(service: Process) -> list[int]:
    """Those who listen."""
    inodes = {
        line.split()[9]
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]
        if line.split()[1].endswith(f":{service.port:04X}") and line.split()[3] == "0A"
    }
    listening = []
    for pid in children(service):
        if open_files(pid) & {f"socket:[{inode}]" for inode in inodes}:
            listening.append(pid)
    return listening


def open_files(pid: int) -> set[str]:
    """What its descriptors are; none of a process that has ended, or of a descriptor closed meanwhile."""
    try:
        descriptors = list(Path(f"/proc/{pid}/fd").iterdir())
    except (FileNotFoundError, ProcessLookupError):
        return set()
    names = set()
    for descriptor in descriptors:
        with suppress(FileNotFoundError, ProcessLookupError):
            names.add(str(descriptor.readlink()))
    return names


def figures(service: Process) -> dict[str, float]:
    """/metrics, of whoever answers."""
    lines = [line for line in service.get("/metrics").text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


@dataclass
class Load(threading.Thread):
    """Requests one after the other, each on a connection of its own, until told to stop."""

    service: Process
    body: dict[str, object]
    statuses: Counter[str] = field(default_factory=Counter)
    stopped: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        super().__init__(daemon=True)

    def __hash__(self) -> int:
        return id(self)

    def run(self) -> None:
        while not self.stopped.is_set():
            try:
                answer = self.service.post("/v1/recommend", self.body)
                self.statuses[str(answer.status_code)] += 1
                self.statuses["stale"] += "x-stale" in answer.headers
            except httpx.TransportError as error:
                self.statuses[type(error).__name__] += 1

    def end(self) -> Counter[str]:
        self.stopped.set()
        self.join(20)
        return self.statuses


@contextmanager
def loaded(service: Process, threads: int = 4) -> Iterator[list[Load]]:
    loads = [Load(service, {"user_id": "u1", "k": 3}) for _ in range(threads)]
    for load in loads:
        load.start()
    try:
        yield loads
    finally:
        for load in loads:
            load.end()


def served(loads: list[Load]) -> Counter[str]:
    total: Counter[str] = Counter()
    for load in loads:  # all at once: each may be in the middle of a request
        load.stopped.set()
    for load in loads:
        total += load.end()
    return total


def ready(service: Process) -> None:
    until(lambda: not service.reasons(), "ready", 60)
    until(lambda: len(workers(service)) == 2 and len(children(service)) == 3, "all processes", 30)
    until(lambda: all(not service.reasons() for _ in range(20)), "all workers ready", 30)


def test_workers_share_one_mirror_that_follows_the_store_and_one_count(tmp_path: Path, redis: RedisServer) -> None:
    source = fill(redis)
    with serving(tmp_path, redis.url, workers=2) as service:
        ready(service)
        with loaded(service) as loads:
            for n in range(30):
                source.apply([("u1", f"new{n}", 1.0)])
                ask = lambda n=n: service.get(f"/v1/embeddings/item/new{n}").status_code == 200  # noqa: E731
                until(ask, "a worker has it", 10)
                # what one worker answers another does too: it is the same memory
                assert all(ask() for _ in range(8))
            total = served(loads)
        assert set(total) <= {"200", "stale"}, total
        assert total["stale"] == 0
        counted = figures(service)
        assert counted['towline_http_requests_total{code="200",route="/v1/recommend"}'] == total["200"]
        assert counted["towline_mirror_items"] == len({item for _, item, _ in EVENTS}) + 30
        assert counted["towline_serving_workers"] == 2
        for _ in range(10):  # whoever is asked
            again = figures(service)
            assert again['towline_http_requests_total{code="200",route="/v1/recommend"}'] == total["200"]
    source.store.close()


def test_workers_answer_for_features_as_one_process_does(tmp_path: Path, redis: RedisServer) -> None:
    """Of users, requests and items, filters included; also after more was learned and items have other values."""
    phone = {"device": "phone", "tags": [1, 2]}
    asks: list[tuple[str, dict[str, object]]] = [
        ("/v1/recommend", {"user_id": 3, "k": 50, "features": phone}),
        ("/v1/recommend", {"user_id": "new", "k": 50, "features": phone}),
        ("/v1/recommend", {"user_id": 3, "k": 50, "filter": {"genre": "a"}}),
        ("/v1/recommend", {"user_id": 12, "k": 50, "filter": {"genre": ["c", "d"], "price": {"min": 3}}}),
        ("/v1/recommend", {"user_id": 5, "k": 50, "candidates": [101, 102, 105]}),
    ]

    def answered(service: Process) -> list[dict[str, float]]:
        found = []
        for path, body in asks:
            answer = service.post(path, body)
            assert answer.status_code == 200, answer.text
            found.append({item["item_id"]: pytest.approx(item["score"], abs=1e-4) for item in answer.json()["items"]})
        return found

    store = open_store(RedisSettings(url=redis.url))
    learn(store, 150)
    with serving(tmp_path, redis.url, workers=2) as service, serving(tmp_path, redis.url) as alone:
        ready(service)
        until(lambda: not alone.reasons(), "ready", 30)
        before = answered(alone)
        assert all(before)
        assert before[2].keys() < before[0].keys()
        for _ in range(8):  # whoever is asked
            until(lambda: answered(service) == answered(alone), "the same answers", 10)
        learn(store, 300)
        until(lambda: answered(alone) != before, "more was learned", 10)
        for _ in range(8):
            until(lambda: answered(service) == answered(alone), "the same answers again", 10)
        os.kill(workers(service)[0], signal.SIGKILL)  # the next begins with what there is
        ready(service)
        for _ in range(8):
            until(lambda: answered(service) == answered(alone), "the same answers of another worker", 10)
    store.close()


def test_a_killed_worker_is_replaced_and_its_counts_are_kept(tmp_path: Path, redis: RedisServer) -> None:
    """Requests that it was answering break; those that come later are answered, by the other or by the next."""
    fill(redis).store.close()
    with serving(tmp_path, redis.url, workers=2) as service:
        ready(service)
        with loaded(service) as loads:
            for _ in range(3):
                answered = sum(load.statuses["200"] for load in loads)
                until(lambda n=answered: sum(load.statuses["200"] for load in loads) > n + 30, "load", 30)
                victim = workers(service)[0]
                before = figures(service)
                os.kill(victim, signal.SIGKILL)
                until(lambda v=victim: len(workers(service)) == 2 and v not in workers(service), "another", 20)
                until(lambda: all(not service.reasons() for _ in range(10)), "all ready", 20)
                after = figures(service)
                name = 'towline_http_requests_total{code="200",route="/v1/recommend"}'
                assert after[name] > before[name] > 30
            total = served(loads)
        broken = sum(n for name, n in total.items() if name not in ("200", "stale"))
        assert broken <= 3 * len(loads), f"only what was being answered by it may break: {total}"
        assert total["200"] > 100
        counted = figures(service)
        assert counted['towline_serving_restarts_total{process="worker"}'] == 3
        assert counted["towline_http_requests_in_flight"] == 1, "what the dead were answering is no longer counted"
        service.signal(signal.SIGTERM)
        assert service.exit_code() == 0


def test_a_killed_writer_is_replaced_while_answers_go_on_and_say_stale(tmp_path: Path, redis: RedisServer) -> None:
    source = fill(redis)
    with serving(tmp_path, redis.url, workers=2, max_lag_s=0.3) as service:
        ready(service)
        redis.pause()  # so that the next writer can't begin at once
        with loaded(service) as loads:
            os.kill(writer(service), signal.SIGKILL)
            until(lambda: set(service.reasons()) >= {"lag"}, "past the lag", 10)
            stale = service.get("/v1/embeddings/item/i1")
            assert (stale.status_code, stale.headers["x-stale"]) == (200, "1")
            assert stale.headers["x-as-of"]
            redis.resume()
            until(lambda: all(not service.reasons() for _ in range(10)), "ready again", 30)
            source.apply([("u1", "later", 1.0)])
            until(lambda: service.get("/v1/embeddings/item/later").status_code == 200, "the next writer follows")
            total = served(loads)
        assert set(total) <= {"200", "stale"}, f"no request failed: {total}"
        assert total["stale"] > 0
        assert figures(service)['towline_serving_restarts_total{process="writer"}'] == 1
    source.store.close()


def test_a_worker_that_begins_while_the_store_is_down_answers_from_the_mirror(
    tmp_path: Path, redis: RedisServer
) -> None:
    fill(redis).store.close()
    with serving(tmp_path, redis.url, workers=2) as service:
        ready(service)
        redis.kill()
        until(lambda: "x-stale" in service.get("/v1/embeddings/item/i1").headers, "noticed", 20)
        victims = workers(service)
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        until(lambda: len(set(workers(service)) - set(victims)) == 2, "others", 20)
        until(lambda: "loading" not in service.reasons(), "a mirror", 20)
        answer = service.post("/v1/recommend", {"user_id": "u1"})
        assert (answer.status_code, answer.json()["strategy"], answer.headers["x-stale"]) == (200, "popular", "1")


def test_sigterm_under_load_fails_no_request(tmp_path: Path, redis: RedisServer) -> None:
    """Clients behind a balancer, which stops sending once any probe says that the service is not ready."""
    fill(redis).store.close()
    with serving(tmp_path, redis.url, workers=2, drain_s=5) as service:
        ready(service)
        with loaded(service, 8) as loads:
            until(lambda: sum(load.statuses["200"] for load in loads) > 100, "load", 30)
            service.signal(signal.SIGTERM)
            until(lambda: all(service.reasons() == ["draining"] for _ in range(6)), "readiness of both says so", 4)
            total = served(loads)
        assert set(total) <= {"200", "stale"}, total
        assert service.exit_code() == 0
        assert "Traceback" not in service.log.read_text()


@pytest.mark.parametrize("signals", [[signal.SIGINT], [signal.SIGTERM, signal.SIGTERM]])
def test_a_person_does_not_wait_for_the_drain(tmp_path: Path, redis: RedisServer, signals: list[int]) -> None:
    fill(redis).store.close()
    with serving(tmp_path, redis.url, workers=2, drain_s=600) as service:
        ready(service)
        for number in signals[:-1]:
            service.signal(number)
            until(lambda: service.reasons() == ["draining"], "the first signal took effect")
        service.signal(signals[-1])
        assert service.exit_code(15) == 0


def test_nothing_is_left_of_a_service_whose_parent_was_killed(tmp_path: Path, redis: RedisServer) -> None:
    fill(redis).store.close()
    before = set(Path("/dev/shm").iterdir())
    with serving(tmp_path, redis.url, workers=2, drain_s=0.2) as service:
        ready(service)
        family = children(service)
        os.kill(service.popen.pid, signal.SIGKILL)
        service.exit_code()
        until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in family), "the others end", 20)
        with serving(tmp_path, redis.url, workers=2, port=service.port) as again:
            ready(again)
            family = [again.popen.pid, *children(again)]
            for pid in family:
                os.kill(pid, signal.SIGKILL)
            again.exit_code()
            until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in family[1:]), "all are gone", 20)
    assert set(Path("/dev/shm").iterdir()) == before, "the memory has no name"


def test_a_store_that_no_writer_can_use_is_one_sentence_and_a_failure(tmp_path: Path) -> None:
    options = ("--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
    with running("redis", tmp_path, *options) as redis, serving(tmp_path, redis.url, workers=2) as service:
        assert service.exit_code(30) == 1
        assert "noeviction" in service.log.read_text().splitlines()[-1]
        assert "Traceback" not in service.log.read_text()


def test_a_port_in_use_is_refused_also_by_another_of_its_kind(tmp_path: Path, redis: RedisServer) -> None:
    fill(redis).store.close()
    with serving(tmp_path, redis.url, workers=2) as service:
        ready(service)
        (tmp_path / "other").mkdir()
        with serving(tmp_path / "other", redis.url, workers=2, port=service.port) as other:
            assert other.exit_code(30) == 1
            assert f"port {service.port} of 127.0.0.1 is in use" in other.log.read_text()
        assert not service.reasons()


def test_another_store_behind_the_same_address_is_noticed_by_all(tmp_path: Path) -> None:
    redis = RedisServer(server_binary("redis"), tmp_path)
    redis.start()
    try:
        fill(redis).store.close()
        with serving(tmp_path, redis.url, workers=2) as service:
            ready(service)
            redis.kill()
            until(lambda: "x-stale" in service.get("/v1/embeddings/item/i1").headers, "noticed", 20)
            for file in tmp_path.glob("*.rdb"):
                file.unlink()
            redis.start()
            again = fill(redis)
            again.apply([("u9", "only-item", 1.0)])
            until(lambda: service.get("/v1/embeddings/item/only-item").status_code == 200, "the new row", 30)
            assert all(service.get("/v1/embeddings/item/only-item").status_code == 200 for _ in range(10))
            again.store.close()
    finally:
        redis.kill()


def test_unique_request_ids_of_all_workers(tmp_path: Path, redis: RedisServer) -> None:
    fill(redis).store.close()
    with serving(tmp_path, redis.url, workers=2) as service:
        ready(service)
        ids = [service.get("/livez").headers["x-request-id"] for _ in range(60)]
        assert len(set(ids)) == len(ids)
        assert len({name.partition("-")[0] for name in ids}) == 2, "both answered"


HOPELESS = """
from serving.settings import ServingSettings
from serving.supervisor import Supervisor
from serving.errors import StartupError
import sys

def connect():
    raise RuntimeError("a bug")

try:
    Supervisor(ServingSettings(port=0, workers=2), connect, None).run()
except StartupError as error:
    sys.exit(f"said: {error}")
"""


def test_a_process_that_never_lives_long_ends_the_service(tmp_path: Path) -> None:
    """Rather than one that never becomes ready."""
    done = subprocess.run([sys.executable, "-c", HOPELESS], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "said: writer ended 5 times in a row within 5 s: see the log"
    assert "a bug" in done.stderr
