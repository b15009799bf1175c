"""The module in the package: wheels with and without it, installed, loaded; and what development uses instead."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from native.redis_module import compiler
from native.redis_module.compiler import build_module, module_path
from tests.servers import running, server_names

ROOT = Path(__file__).parents[3]
QUICK = {**os.environ, "TOWLINE_MODULE_FLAGS": "-O0"}
"""For builds whose module is not run."""
MODULE = "native/redis_module/towline.so"


def python(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *words],
        cwd=ROOT,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=False,
    )


def build_wheel(folder: Path, **environ: str) -> tuple[Path, str]:
    """The wheel, and what was said."""
    done = python("hatchling", "build", "-t", "wheel", "-d", str(folder), **environ)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = folder.glob("*.whl")
    return wheel, done.stdout + done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheels"), TOWLINE_REQUIRE_MODULE="1")[0]


@pytest.fixture
def no_compiler(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "nothing").mkdir()
    return {"PATH": str(tmp_path / "nothing"), "CC": ""}


@pytest.mark.servers
@pytest.mark.parametrize("name", server_names())
def test_a_wheel_has_the_module_and_a_server_loads_it(name: str, wheel: Path, tmp_path: Path) -> None:
    assert re.fullmatch(r"towline-[\d.]+-py3-none-(?!any)\w+\.whl", wheel.name)
    assert {MODULE, "native/redis_module/server/module.c", "native/redis_module/core/shard.h"} <= set(
        zipfile.ZipFile(wheel).namelist()
    )
    done = python("pip", "install", "--no-deps", "--no-index", "--target", str(tmp_path / "site"), str(wheel))
    assert done.returncode == 0, done.stderr
    installed = tmp_path / "site" / MODULE
    assert os.access(installed, os.X_OK), "servers refuse modules that are not executable"
    asked = "from native.redis_module.compiler import module_path; print(module_path().path)"
    found = subprocess.run(
        [sys.executable, "-c", asked],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path / "site")},
        capture_output=True,
        check=True,
    )
    assert found.stdout.decode().strip() == str(installed), "no compiler is needed for it"
    place = tmp_path / "server"
    place.mkdir()
    with running(name, place, "--loadmodule", str(installed)) as server:
        assert b"tow.apply" in server.command("COMMAND", "LIST", "FILTERBY", "MODULE", "towline").lower()


def test_without_a_compiler_the_wheel_is_pure_and_says_so(tmp_path: Path, no_compiler: dict[str, str]) -> None:
    wheel, said = build_wheel(tmp_path / "wheels", **no_compiler)
    assert wheel.name.endswith("-py3-none-any.whl")
    assert MODULE not in zipfile.ZipFile(wheel).namelist()
    assert "a wheel without the Redis module" in said
    assert "install gcc or clang" in said


def test_a_required_module_that_cant_be_built_is_an_error(tmp_path: Path, no_compiler: dict[str, str]) -> None:
    done = python("hatchling", "build", "-t", "wheel", "-d", str(tmp_path), TOWLINE_REQUIRE_MODULE="1", **no_compiler)
    assert done.returncode != 0
    assert (
        "TOWLINE_REQUIRE_MODULE is set, and the Redis module can't be built: no C compiler" in done.stdout + done.stderr
    )


def test_the_source_distribution_can_build_it(tmp_path: Path) -> None:
    assert python("hatchling", "build", "-t", "sdist", "-d", str(tmp_path)).returncode == 0
    (archive,) = tmp_path.glob("*.tar.gz")
    shutil.unpack_archive(archive, tmp_path, filter="data")
    (sources,) = (path for path in tmp_path.iterdir() if path.is_dir())
    assert (sources / "hatch_build.py").is_file()
    script = sources / "native" / "redis_module" / "compiler.py"
    subprocess.run([sys.executable, str(script), str(tmp_path / "towline.so")], check=True, env=QUICK)
    assert (tmp_path / "towline.so").stat().st_size > 0


def test_it_has_one_symbol_for_others(tmp_path: Path) -> None:
    built = build_module(tmp_path / "towline.so", *compiler.WARNINGS)
    symbols = subprocess.run(["nm", "-D", "--defined-only", str(built)], capture_output=True, text=True, check=True)
    assert [line.split()[-1] for line in symbols.stdout.splitlines()] == ["RedisModule_OnLoad"]


def test_development_uses_the_cache_and_builds_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    builds: list[Path] = []
    build = compiler.build_module

    def counted(out: Path, *flags: str, environ: object) -> Path:
        builds.append(out)
        return build(out, *flags, environ=environ)  # type: ignore[arg-type]

    monkeypatch.setattr(compiler, "build_module", counted)
    environ = {**QUICK, "XDG_CACHE_HOME": str(tmp_path)}
    with ThreadPoolExecutor(2) as two:
        paths = {found.path for found in two.map(module_path, [environ, environ])}
    (path,) = paths
    assert path
    assert path.parent.parent == tmp_path / "towline"
    assert [entry.name for entry in path.parent.iterdir()] == [path.name], "nothing else is left there"
    before = len(builds)
    assert module_path(environ).path == path
    assert len(builds) == before
    other = module_path({**environ, "TOWLINE_MODULE_FLAGS": "-O0 -DOTHER=1"}).path
    assert other
    assert other.parent != path.parent


def test_why_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environ = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    missing = module_path({**environ, "PATH": "", "CC": ""})
    assert missing.path is None
    assert missing.why_not.startswith("no C compiler: install gcc or clang")
    refused = module_path({**environ, "TOWLINE_MODULE_FLAGS": "-fno-such-flag"})
    assert refused.path is None
    assert re.match(r"the module can't be compiled: .*error", refused.why_not)
    (tmp_path / "file").touch()
    kept = module_path({**environ, "XDG_CACHE_HOME": str(tmp_path / "file")})
    assert kept.path is None
    assert kept.why_not.startswith("the module can't be kept in the cache folder: ")
