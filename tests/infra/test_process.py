"""Only processes that we started are ever signalled, and none is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from infra.errors import LocalStackError, StartFailed
from infra.local import process
from infra.local.deadline import Deadline
from infra.local.process import ProcessRecord
from infra.local.state import Started, State, StateFile

SLEEP = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]
STUBBORN = [
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)",
]


def started(tmp_path: Path, command: list[str]) -> ProcessRecord:
    record = process.start("sleeper", command, tmp_path / "log")
    assert Deadline(30).wait(lambda: process.last_lines(record.log) == "up")
    return record


def test_stop_ends_a_process_and_may_be_repeated(tmp_path: Path) -> None:
    record = started(tmp_path, SLEEP)
    assert process.is_alive(record)
    process.stop(record, timeout_s=10)
    assert not process.is_alive(record)
    process.stop(record, timeout_s=10)


def test_a_process_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    record = started(tmp_path, STUBBORN)
    process.stop(record, timeout_s=0.2)
    assert Deadline(10).wait(lambda: not process.is_alive(record))


def test_children_of_a_stopped_process_are_stopped_too(tmp_path: Path) -> None:
    child = (
        f"import subprocess, sys, time; p = subprocess.Popen({STUBBORN!r}); print(p.pid, flush=True); time.sleep(600)"
    )
    record = process.start("parent", [sys.executable, "-c", child], tmp_path / "log")
    assert Deadline(30).wait(lambda: process.last_lines(record.log).endswith("up"))
    pid = int(process.last_lines(record.log).split()[0])
    process.stop(record, timeout_s=10)

    def gone() -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except (FileNotFoundError, ProcessLookupError):
            return True

    assert Deadline(10).wait(gone)


def test_a_recycled_pid_is_never_killed(tmp_path: Path) -> None:
    bystander = subprocess.Popen(SLEEP, stdout=subprocess.DEVNULL)
    try:
        old = ProcessRecord(pid=bystander.pid, mark="another boot:1", log=str(tmp_path / "log"))
        assert not process.is_alive(old)
        process.stop(old, timeout_s=1)
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_a_process_killed_from_outside_is_dead_not_a_zombie_that_counts(tmp_path: Path) -> None:
    record = started(tmp_path, SLEEP)
    os.kill(record.pid, signal.SIGKILL)
    assert Deadline(10).wait(lambda: not process.is_alive(record))


def test_a_program_that_is_no_program(tmp_path: Path) -> None:
    with pytest.raises(StartFailed, match=r"nothing can't be executed"):
        process.start("nothing", [str(tmp_path / "absent")], tmp_path / "log")


def test_the_record_survives_and_is_removed_with_its_last_entry(tmp_path: Path) -> None:
    file = StateFile(tmp_path)
    one, two = (Started("broker", str(n), ProcessRecord(n, "m", "log"), "addr", n, "note") for n in (1, 2))
    assert file.read() == State()
    file.add(one)
    assert StateFile(tmp_path).read() == State((one,))
    file.add(two, replaces=one)
    assert file.read() == State((two,))
    file.remove(two)
    assert file.read() == State()
    assert not (tmp_path / "state.json").exists()


def test_a_damaged_record_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text("{")
    with pytest.raises(LocalStackError, match=r"state.json is damaged .* remove the file"):
        StateFile(tmp_path).read()


def test_only_one_command_changes_the_stack_at_a_time(tmp_path: Path) -> None:
    entered, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with StateFile(tmp_path).lock(5):
            entered.set()
            leave.wait(30)

    holder = threading.Thread(target=hold)
    holder.start()
    try:
        assert entered.wait(10)
        with pytest.raises(LocalStackError, match="another towline command"), StateFile(tmp_path).lock(0.1):
            pass
    finally:
        leave.set()
        holder.join()
    with StateFile(tmp_path).lock(5):
        pass
