"""The index alone, through crowded buckets, splits and allocations that fail: what is found is what was put there."""

import subprocess

from native.redis_module.compiler import FOLDERS, build
from tests.native.redis_module.loaded import HERE

SOURCES = [HERE / "index_life.c", HERE / "counting.c", FOLDERS[0] / "index.c", FOLDERS[0] / "mix.c"]
SANITIZED = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g", "-O1")


def test_lives_of_an_index_are_those_of_an_array_whatever_was_found_before(tmp_path):
    flags = (f"-I{HERE}", f"-I{FOLDERS[0]}")
    programs = [
        build(tmp_path / "plain", SOURCES, *flags),
        build(tmp_path / "sanitized", SOURCES, *flags, *SANITIZED),
    ]
    for seed in (1, 2):
        ends = [
            subprocess.run([program, str(seed), "6"], capture_output=True, text=True, check=False, timeout=120)
            for program in programs
        ]
        assert [end.stderr for end in ends] == ["", ""]
        assert [end.returncode for end in ends] == [0, 0]
        assert ends[0].stdout == ends[1].stdout
        assert len(ends[0].stdout) == 17
