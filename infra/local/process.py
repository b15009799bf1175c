"""Child processes that outlive the command that started them, and are never mistaken for others.

A process is known by its pid and its start mark. Pids are recycled: only a process with the right mark is signalled.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from infra.errors import StartFailed
from infra.local.deadline import Deadline


class ProcessRecord(msgspec.Struct, frozen=True):
    """What is written down about a started process. `mark` is unique to it among all processes with its pid."""

    pid: int
    mark: str
    log: str


# Children of this very process must be reaped, or they stay as zombies; those of earlier commands are init's affair.
_children: dict[int, subprocess.Popen[bytes]] = {}


def start(
    name: str, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None, cwd: Path | None = None
) -> ProcessRecord:
    """Starts `command` in its own session, so that Ctrl-C reaches us and we decide the order of stopping.

    Output goes to `log`, begun anew. Raises StartFailed where the program can't be executed.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        try:
            child = subprocess.Popen(  # noqa: S603  programs are found by us
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=environment,
                cwd=cwd,
            )
        except OSError as error:
            raise StartFailed(f"{name} can't be executed: {error}") from error
    _children[child.pid] = child
    return ProcessRecord(pid=child.pid, mark=_mark(child.pid), log=str(log))


def is_alive(record: ProcessRecord) -> bool:
    """Whether that very process runs; a zombie does not, nor does a newer process with the same pid."""
    child = _children.get(record.pid)
    mark = _mark(record.pid)
    if child is not None and not mark:
        child.wait()  # gone or a zombie: returns at once and takes it off the process table
        del _children[record.pid]
    return bool(mark) and mark == record.mark


def stop(record: ProcessRecord, timeout_s: float) -> None:
    """SIGTERM, then SIGKILL to its whole session after `timeout_s`. Idempotent; returns when it is gone."""
    if not is_alive(record):
        return
    with contextlib.suppress(ProcessLookupError):
        os.kill(record.pid, signal.SIGTERM)
    Deadline(timeout_s).wait(lambda: not is_alive(record))
    # Also after an orderly end: what it may have started shares its session, and keeps its pid from being reused.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(record.pid, signal.SIGKILL)
    Deadline(timeout_s).wait(lambda: not is_alive(record))


def last_lines(log: str, count: int = 12) -> str:
    """The end of a log, for an error message; empty if there is none."""
    try:
        with Path(log).open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 16_384))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
    return "\n".join(text.splitlines()[-count:])


def _mark(pid: int) -> str:
    """Boot and start time of a live process; empty if there is none or it is a zombie."""
    return _mark_from_proc(pid) if Path("/proc/self/stat").exists() else _mark_from_ps(pid)


def _mark_from_proc(pid: int) -> str:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""
    # The name in parentheses may hold spaces and parentheses itself: count from its end.
    fields = stat.rpartition(")")[2].split()
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return "" if fields[0] in "ZX" else f"{boot}:{fields[19]}"


def _mark_from_ps(pid: int) -> str:
    """macOS: start time to the second; a pid is not reused so soon."""
    answer = subprocess.run(  # noqa: S603
        ["/bin/ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    state, _, started = answer.stdout.strip().partition(" ")
    return "" if state.startswith("Z") else started.strip()
