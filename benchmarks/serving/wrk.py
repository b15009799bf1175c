"""wrk: as many requests as the server answers, over a few connections."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

from benchmarks.serving.deployed import cpu_s

_SCRIPT = """
local bodies = {{}}
for line in io.lines("{bodies}") do bodies[#bodies + 1] = line end
local at = 0
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
request = function()
    at = at % #bodies + 1
    return wrk.format(nil, nil, nil, bodies[at])
end
"""
_PATHS = """
local paths = {{}}
for line in io.lines("{paths}") do paths[#paths + 1] = line end
local at = 0
request = function()
    at = at % #paths + 1
    return wrk.format("GET", paths[at])
end
"""


class Rate(NamedTuple):
    """What a run of wrk saw, and what the server used for it."""

    per_s: float
    per_core_s: float  # per second of the server's processor time, all its threads
    failed: int  # answers other than 2xx and 3xx, and broken connections


def required() -> str:
    """The program. Raises SystemExit with the remedy."""
    found = shutil.which("wrk")
    if found is None:
        raise SystemExit("bench-serving needs wrk: apt-get install wrk, or brew install wrk")
    return found


def run(url: str, pid: int, seconds: float, connections: int, script: Path | None = None) -> Rate:
    """One thread against the server of process `pid`. Raises RuntimeError where wrk fails."""
    command = [required(), "-t1", f"-c{connections}", f"-d{max(1, round(seconds))}s"]
    command += ["-s", str(script)] if script else []
    before = cpu_s(pid)
    done = subprocess.run([*command, url], capture_output=True, text=True, check=False)
    used = cpu_s(pid) - before
    rate = re.search(r"Requests/sec:\s+([\d.]+)", done.stdout)
    total = re.search(r"(\d+) requests in", done.stdout)
    if done.returncode or rate is None or total is None:
        raise RuntimeError(f"wrk failed: {done.stdout}{done.stderr}")
    refused = re.search(r"Non-2xx or 3xx responses: (\d+)", done.stdout)
    broken = re.search(r"Socket errors: connect (\d+), read (\d+), write (\d+), timeout (\d+)", done.stdout)
    failed = (int(refused[1]) if refused else 0) + (sum(map(int, broken.groups())) if broken else 0)
    return Rate(float(rate[1]), int(total[1]) / used, failed)


def posting(folder: Path, name: str, bodies: list[bytes]) -> Path:
    """A script that posts the bodies in turn."""
    return _script(folder, name, bodies, _SCRIPT, "bodies")


def getting(folder: Path, name: str, paths: list[str]) -> Path:
    """A script that gets the paths in turn."""
    return _script(folder, name, [path.encode() for path in paths], _PATHS, "paths")


def _script(folder: Path, name: str, lines: list[bytes], template: str, variable: str) -> Path:
    data = folder / f"{name}.txt"
    data.write_bytes(b"\n".join(lines) + b"\n")
    script = folder / f"{name}.lua"
    script.write_text(template.format(**{variable: data}))
    return script
