"""What building says when it can't."""

import pytest

from native.redis_module.compiler import BuildFailed, CompilerMissing, build_library


def test_without_a_compiler(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(CompilerMissing, match="install gcc or clang"):
        build_library(tmp_path / "x.so")


def test_what_the_compiler_refuses(tmp_path):
    source = tmp_path / "wrong.c"
    source.write_text("int f(void) { return unknown; }\n")
    with pytest.raises(BuildFailed, match=r"(?s)-std=c11.*ended with.*unknown"):
        build_library(tmp_path / "x.so", [source])
