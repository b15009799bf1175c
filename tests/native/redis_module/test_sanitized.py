"""One random schedule, with failing allocations, under the sanitizers and without: the same table comes of it."""

import subprocess
from pathlib import Path

import pytest

from native.redis_module.compiler import CORE, build
from tests.native.redis_module.loaded import HERE

SOURCES = [*CORE, HERE / "counting.c", HERE / "schedule.c"]
SANITIZED = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g", "-O1")


@pytest.fixture(scope="module")
def programs(tmp_path_factory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("schedule")
    plain = build(folder / "plain", SOURCES, f"-I{HERE}")
    return plain, build(folder / "sanitized", SOURCES, f"-I{HERE}", *SANITIZED)


@pytest.mark.parametrize("seed", range(6))
def test_a_random_schedule(programs, seed):
    ends = [
        subprocess.run([program, str(seed), "600"], capture_output=True, text=True, check=False, timeout=60)
        for program in programs
    ]
    for end in ends:
        assert (end.returncode, end.stderr) == (0, "")
    assert ends[0].stdout == ends[1].stdout
