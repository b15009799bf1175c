"""The core's tests once more, on a core that is built with the address and undefined-behaviour sanitizers."""

import os
import subprocess
import sys
from pathlib import Path

from native.redis_module.compiler import compiler

SANITIZED = "-fsanitize=address,undefined -fno-sanitize-recover=all -g -O1"


def runtime(name):
    """Path of a sanitizer's library; it has to be there before Python's first allocation."""
    found = subprocess.run([compiler(), f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    return found.stdout.strip()


def test_the_core_under_sanitizers():
    root = Path(__file__).parents[3]
    chosen = "0- or growth or crafted or agree or large or memory"
    end = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/native/redis_module/test_core.py",
         "tests/native/redis_module/test_shards.py", "-k", chosen],
        cwd=root, capture_output=True, text=True, check=False, timeout=500,
        env=os.environ | {
            "TOWLINE_CORE_FLAGS": SANITIZED, "LD_PRELOAD": f"{runtime('libasan.so')} {runtime('libubsan.so')}",
            "ASAN_OPTIONS": "detect_leaks=0", "PYTHONPATH": str(root),
        },
    )  # fmt: skip
    assert end.returncode == 0, end.stdout + end.stderr
    assert "passed" in end.stdout
