"""All tests, in two processes at once: `python -m tests.halves`.

Half of their time is spent waiting for servers. What is shown is the first half as it goes, then the second; the exit
code is 0 if both are.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

TESTS = Path(__file__).parent
FIRST = ("benchmarks", "laws", "native", "serving", "trainer")
"""The other half is whatever else there is: a new folder is never forgotten."""


def folders() -> tuple[list[Path], list[Path]]:
    """The two halves."""
    every = sorted(path for path in TESTS.iterdir() if path.is_dir() and any(path.rglob("test_*.py")))
    first = [path for path in every if path.name in FIRST]
    return first, [path for path in every if path not in first]


def main() -> int:
    """Exit code: 0 if both halves passed."""
    first, second = ([sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *map(str, half)] for half in folders())
    with tempfile.TemporaryFile("w+") as written:
        behind = subprocess.Popen(second, stdout=written, stderr=subprocess.STDOUT)
        try:
            codes = (subprocess.run(first, check=False).returncode, behind.wait())
        finally:
            behind.kill()
            written.seek(0)
            sys.stdout.write(written.read())
    return int(any(codes))  # a half that was killed has a negative one


if __name__ == "__main__":
    raise SystemExit(main())
