"""Servers whose module was built with sanitizers: how they are started, and what they complained of."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path

from native.redis_module.compiler import FLAGS_VARIABLE, compiler

_OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:handle_segv=2:handle_sigbus=2",
    "UBSAN_OPTIONS": "print_stacktrace=1",
}
"""Leaks: the server is killed, and the core's tests count every byte. Null: a limit is an error reply, as without
sanitizers. 2: the server's own crash handler must not take the place of the report.
"""


def sanitized() -> bool:
    """Whether modules are built under ASan now."""
    flags = shlex.split(os.environ.get(FLAGS_VARIABLE, ""))
    return any(flag.startswith("-fsanitize=") and "address" in flag for flag in flags)


def server_environment(options: tuple[str, ...]) -> Mapping[str, str] | None:
    """What a server with these options is started in; None: what we have ourselves.

    The runtime must be the first library of the process, so the server's own memory is watched, too: its allocator
    must be malloc's, which jemalloc as a shared library is. A Valkey with jemalloc inside, which opens modules with
    RTLD_DEEPBIND, can't be used so.
    """
    if "--loadmodule" not in options or not sanitized():
        return None
    runtime = subprocess.run(
        [compiler(), "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    return {**os.environ, **_OPTIONS, "LD_PRELOAD": runtime}


def raise_complaint(log: Path) -> None:
    """Raises AssertionError with what a sanitizer wrote into a server's log."""
    text = log.read_text(errors="replace") if log.exists() else ""
    if found := re.search(r"==\d+==.*Sanitizer|runtime error:", text):
        raise AssertionError(text[max(0, found.start() - 200) : found.start() + 6000])
