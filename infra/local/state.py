"""The record of what the local stack has started: one JSON file, replaced as a whole, under one lock."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from infra.errors import LocalStackError
from infra.local.deadline import Deadline
from infra.local.process import ProcessRecord


class Started(msgspec.Struct, frozen=True):
    """One started server or service. `address` is what clients connect to; `note` is for people."""

    kind: str  # store, broker, trainer, serving
    name: str
    process: ProcessRecord
    address: str
    port: int = 0
    note: str = ""


class State(msgspec.Struct, frozen=True):
    """All that was started and not yet stopped, in order of starting."""

    entries: tuple[Started, ...] = ()

    def of(self, kind: str) -> Started | None:
        """The entry of a kind of which there is at most one."""
        return next((entry for entry in self.entries if entry.kind == kind), None)


class StateFile:
    """`<state dir>/state.json`. Whoever changes it holds `lock()`; whoever reads sees a whole version."""

    def __init__(self, state_dir: Path) -> None:
        self._dir = state_dir
        self._path = state_dir / "state.json"

    def read(self) -> State:
        """The current record; empty if there is none. Raises LocalStackError on a file that is not ours."""
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=State)
        except FileNotFoundError:
            return State()
        except msgspec.DecodeError as error:
            raise LocalStackError(
                f"{self._path} is damaged ({error}): stop what `ps` still shows of the stack, then remove the file"
            ) from error

    def add(self, entry: Started, replaces: Started | None = None) -> None:
        """Appends an entry, or puts it in the place of an older one."""
        entries = self.read().entries
        if replaces in entries:
            self._write(State(tuple(entry if old == replaces else old for old in entries)))
        else:
            self._write(State((*entries, entry)))

    def remove(self, entry: Started) -> None:
        """Forgets an entry; no error if it is not there."""
        left = tuple(e for e in self.read().entries if e.process != entry.process)
        if left:
            self._write(State(left))
        else:
            self._path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def lock(self, timeout_s: float) -> Iterator[None]:
        """Excludes other `up` and `down` on this state directory. Released by the kernel if we die."""
        self._dir.mkdir(parents=True, exist_ok=True)
        with (self._dir / "lock").open("a") as file:
            if not Deadline(timeout_s).wait(lambda: _try_lock(file.fileno())):
                raise LocalStackError(
                    f"another towline command changes the stack in {self._dir}: wait for it, or set another state_dir"
                )
            yield

    def _write(self, state: State) -> None:
        temporary = self._path.with_suffix(f".{os.getpid()}")
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(state)))
        temporary.replace(self._path)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
