"""Builds the C sources beside it with the system compiler, and finds the built module.

`core/` knows nothing of Redis and is tested without it; `server/` is commands, persistence and replication over it.

Imports nothing but the standard library: the package build loads this file by itself, and
`python native/redis_module/compiler.py OUT` builds the module where no package is installed.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
FOLDERS = (HERE / "core", HERE / "server")
CORE = tuple(sorted(FOLDERS[0].glob("*.c")))
"""What knows nothing of Redis: no dependency but libc and libm."""

MODULE = (*CORE, *sorted(FOLDERS[1].glob("*.c")))
"""All that the loadable module is made of: the core, and what speaks to the server."""

FLAGS = ("-std=c11", "-O2", "-ftree-vectorize", "-fno-math-errno", "-ffp-contract=off")
"""-ffp-contract=off: a fused multiply-add rounds once where the numba kernels round twice, and only on some machines.

-fno-math-errno lets sqrt be one instruction; it changes no result. No -march=native: a wheel and a replica run on other
machines than the one that compiled.
"""

WARNINGS = ("-Wall", "-Wextra", "-Werror")
"""Of our own builds only: a user's newer compiler may warn of more, and must not fail for it."""

SHARED = ("-shared", "-fPIC")
FILE_NAME = "towline.so"
FLAGS_VARIABLE = "TOWLINE_MODULE_FLAGS"
"""More flags for every build of the module, as a shell would split them; for sanitizers and profilers."""


class CompilerMissing(RuntimeError):
    """There is no C compiler; the sentence says what to install."""


class BuildFailed(RuntimeError):
    """The compiler refused; the sentence has its command and output."""


class FoundModule(NamedTuple):
    """The module's file, or None and a sentence that says why there is none and what to do."""

    path: Path | None
    why_not: str = ""


def compiler(environ: Mapping[str, str] = os.environ) -> str:
    """Path of the C compiler: $CC, cc, gcc or clang. Raises CompilerMissing."""
    for name in (environ.get("CC"), "cc", "gcc", "clang"):
        path = shutil.which(name, path=environ.get("PATH", os.defpath)) if name else None
        if path:
            return path
    raise CompilerMissing(
        "no C compiler: install gcc or clang (Debian: apt-get install gcc libc6-dev), or set CC to one"
    )


def build(out: Path, sources: Sequence[Path], *flags: str, environ: Mapping[str, str] = os.environ) -> Path:
    """Compile `sources` with FLAGS, WARNINGS and `flags` into `out`. Raises CompilerMissing and BuildFailed."""
    return _compile(out, sources, (*WARNINGS, *flags), environ)


def build_library(out: Path, sources: Sequence[Path] = CORE, *flags: str) -> Path:
    """`build` of a shared library."""
    return build(out, sources, *SHARED, *flags)


def build_module(out: Path, *flags: str, environ: Mapping[str, str] = os.environ) -> Path:
    """Compile the module that a server loads, with FLAGS, `flags` and those of TOWLINE_MODULE_FLAGS, into `out`.

    The file has no symbol for others but RedisModule_OnLoad. Raises CompilerMissing and BuildFailed.
    """
    return _compile(out, MODULE, _module_flags(flags, environ), environ)


def module_path(environ: Mapping[str, str] = os.environ) -> FoundModule:
    """The module that came with the installed package; without one, that of the user's cache, built there if need be.

    The cache's folder is named by everything the build depends on, so it is never stale, and a build appears in it as a
    whole: any number of processes may build at once. Raises nothing: what goes wrong is in `why_not`.
    """
    shipped = HERE / FILE_NAME
    if shipped.is_file() and not environ.get(FLAGS_VARIABLE):
        return FoundModule(shipped)
    try:
        return FoundModule(_cached(environ))
    except CompilerMissing as missing:
        return FoundModule(None, str(missing))
    except BuildFailed as failed:
        complaint = next((line for line in str(failed).splitlines() if "error" in line), str(failed))
        return FoundModule(None, f"the module can't be compiled: {complaint}")
    except (OSError, RuntimeError) as error:  # RuntimeError: a user without a home
        return FoundModule(None, f"the module can't be kept in the cache folder: {error}")


def _cached(environ: Mapping[str, str]) -> Path:
    base = environ.get("XDG_CACHE_HOME", "")
    cache = (Path(base) if base.startswith("/") else Path.home() / ".cache") / "towline"
    path = cache / f"module-{_fingerprint(environ)}" / FILE_NAME
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            build_module(Path(folder) / FILE_NAME, environ=environ).replace(path)
    return path


def _module_flags(flags: Iterable[str], environ: Mapping[str, str]) -> tuple[str, ...]:
    return (*SHARED, "-fvisibility=hidden", *flags, *shlex.split(environ.get(FLAGS_VARIABLE, "")))


def _fingerprint(environ: Mapping[str, str]) -> str:
    """Of sources, flags, compiler and machine; a home may be shared by several."""
    program = compiler(environ)
    about = [program, _answer([program, "--version"]).stdout, platform.machine(), *FLAGS, *_module_flags((), environ)]
    digest = hashlib.sha256("\0".join(about).encode())
    for source in (*MODULE, *(header for folder in FOLDERS for header in sorted(folder.glob("*.h")))):
        content = source.read_bytes()
        digest.update(f"\0{source.name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:16]


def _compile(out: Path, sources: Sequence[Path], flags: Sequence[str], environ: Mapping[str, str] = os.environ) -> Path:
    command = [
        compiler(environ),
        *FLAGS,
        *(f"-I{folder}" for folder in FOLDERS),
        *flags,
        "-o",
        str(out),
        *map(str, sources),
        "-lm",
    ]
    done = _answer(command)
    if done.returncode:
        raise BuildFailed(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
    return out


def _answer(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    # our own sources, by a compiler that the machine's owner chose
    return subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603


def main(arguments: Sequence[str]) -> None:
    """Build the module into the one path given. Ends with the sentence of what went wrong."""
    if len(arguments) != 1:
        raise SystemExit("usage: python compiler.py OUT")
    try:
        build_module(Path(arguments[0]))
    except (CompilerMissing, BuildFailed) as error:
        raise SystemExit(f"towline: {error}") from error


if __name__ == "__main__":
    main(sys.argv[1:])
