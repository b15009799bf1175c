"""Fixtures of the infra tests: private stacks that leave nothing behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from infra.config import TowlineConfig
from infra.local.stack import LocalStack

MakeStack = Callable[..., LocalStack]


def local_config(state_dir: Path, **local: Any) -> TowlineConfig:
    """Defaults but for `[local]`."""
    return TowlineConfig.model_validate({"local": {"state_dir": state_dir, **local}})


@pytest.fixture
def make_stack(tmp_path: Path) -> Iterator[MakeStack]:
    """Stacks in the test's folder, on ephemeral ports; all are stopped at the end."""
    made: list[LocalStack] = []

    def make(environ: dict[str, str] | None = None, **local: Any) -> LocalStack:
        stack = LocalStack(local_config(tmp_path, **local), ephemeral_ports=True, environ=environ)
        made.append(stack)
        return stack

    yield make
    for stack in made:
        stack.stop()
