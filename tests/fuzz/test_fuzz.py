"""A short run of every fuzz target; `make fuzz` is the long one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.run import TARGETS, Fuzzer, make_fuzzer

SECONDS = 2.0


@pytest.fixture(scope="module")
def fuzzer(tmp_path_factory: pytest.TempPathFactory) -> Fuzzer:
    """With the fuzzer that every machine has."""
    return make_fuzzer(tmp_path_factory.mktemp("fuzz"), own=True)


@pytest.mark.parametrize("target", TARGETS)
def test_nothing_is_found(fuzzer: Fuzzer, target: str) -> None:
    fuzzed = fuzzer.fuzz(target, SECONDS, seed=1)
    assert not fuzzed.find, fuzzed.said
    assert fuzzed.runs > 100
    assert fuzzed.edges > 100


def test_a_find_is_told_and_kept(fuzzer: Fuzzer, tmp_path: Path) -> None:
    (tmp_path / "fuzz_weak").write_text(
        '#!/bin/sh\nprintf "\\003\\0\\0\\0\\0\\0\\0\\0abcrest" > "$1/../last-input"\nexit 1\n'
    )
    (tmp_path / "fuzz_weak").chmod(0o755)
    fuzzed = Fuzzer(tmp_path, fuzzer.name).fuzz("weak", SECONDS, seed=1)
    assert Path(fuzzed.find).read_bytes() == b"abc"
