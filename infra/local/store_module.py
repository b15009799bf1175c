"""Whether a store server starts with the Redis module: is there one, does the server take it, what does its data need?

A server can't read the tables of a module that it does not have, and tables made without it stay so. Data is therefore
kept by the kind of server that wrote it: a mark in its folder tells which.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

from infra.errors import ServerMissing
from infra.local import process
from infra.local.deadline import Deadline
from native.redis_module.compiler import FoundModule, module_path

_MARK = "written-with-the-module"
_TRIAL_TIMEOUT_S = 20.0
_STOP_TIMEOUT_S = 5.0


def mark(folder: Path) -> None:
    """Notes that a server with the module writes its data to `folder`."""
    (folder / _MARK).touch()


def choose_module(program: Path, folder: Path, backend: str, environ: Mapping[str, str]) -> FoundModule:
    """What `program` is to load for the data in `folder`, or why it starts without; `backend` is that of `[redis]`.

    Raises ServerMissing where only a server with the module will do and there is none.
    """
    marked = (folder / _MARK).exists()
    if not marked:
        if backend == "stock":
            return FoundModule(None)
        if (folder / "appendonlydir").exists():
            found = FoundModule(
                None, f"the data in {folder} is of a server without it; move that folder away to begin with the module"
            )
            return _required(found, backend)
    found = module_path(environ)
    if found.path and (refusal := _refusal(program, found.path)):
        found = FoundModule(None, f"{program} refused {found.path}: {refusal}")
    if marked and not found.path:
        raise ServerMissing(
            f"the data in {folder} was written by a server with Towline's module, and can't be read without: "
            f"{found.why_not}. Mend that, or move the folder away to begin without the module"
        )
    return _required(found, backend)


def _required(found: FoundModule, backend: str) -> FoundModule:
    if backend == "module" and not found.path:
        raise ServerMissing(f'[redis] backend = "module" is not possible: {found.why_not}')
    return found


def _refusal(program: Path, module: Path) -> str:
    """Why the server does not start with the module; empty if it does. Tried without data, so nothing can be harmed.

    Once started on its data it could only be told to try again without, by then half of it might have been read.
    """
    with tempfile.TemporaryDirectory(prefix="towline-") as folder:
        log = Path(folder) / "log"
        command = [str(program), "--port", "0", "--unixsocket", "socket", "--save", "", "--loadmodule", str(module)]
        trial = process.start(program.name, command, log, cwd=Path(folder))
        Deadline(_TRIAL_TIMEOUT_S).wait(lambda: not process.is_alive(trial) or _is_ready(log))
        ready = _is_ready(log)
        process.stop(trial, _STOP_TIMEOUT_S)
        return "" if ready else _complaints(log)


def _is_ready(log: Path) -> bool:
    return b"eady to accept connections" in log.read_bytes()  # "Ready", in older servers "now ready"


def _complaints(log: Path) -> str:
    """The warnings that speak of modules, without the time; else the last line."""
    lines = [re.sub(r"^\d+:\w .{20,40}? [#*.-] ", "", line) for line in log.read_text(errors="replace").splitlines()]
    about = [line for line in lines if re.search("module|towline", line, re.IGNORECASE) and "aborting" not in line]
    return "; ".join(about or lines[-1:]) or "it said nothing"
