"""Builds C sources of this folder with the system compiler."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parent
TABLE = tuple(sorted(HERE.glob("*.c")))
"""The table structure: no dependency but libc and libm."""

FLAGS = ("-std=c11", "-O2", "-ftree-vectorize", "-fno-math-errno", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror")
"""-ffp-contract=off: a fused multiply-add rounds once where the numba kernels round twice, and only on some machines.

-fno-math-errno lets sqrt be one instruction; it changes no result.
"""


class CompilerMissing(RuntimeError):
    """There is no C compiler; the sentence says what to install."""


class BuildFailed(RuntimeError):
    """The compiler refused; the sentence has its command and output."""


def compiler() -> str:
    """Path of the C compiler: $CC, cc, gcc or clang. Raises CompilerMissing."""
    for name in (os.environ.get("CC"), "cc", "gcc", "clang"):
        path = shutil.which(name) if name else None
        if path:
            return path
    raise CompilerMissing(
        "no C compiler: install gcc or clang (Debian: apt-get install gcc libc6-dev), or set CC to one"
    )


def build(out: Path, sources: Sequence[Path], *flags: str) -> Path:
    """Compile `sources` with FLAGS and `flags` into `out`. Raises CompilerMissing and BuildFailed."""
    command = [compiler(), *FLAGS, f"-I{HERE}", *flags, "-o", str(out), *map(str, sources), "-lm"]
    # our own sources, by a compiler that the machine's owner chose
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        raise BuildFailed(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
    return out


def build_library(out: Path, sources: Sequence[Path] = TABLE, *flags: str) -> Path:
    """`build` of a shared library."""
    return build(out, sources, "-shared", "-fPIC", *flags)
