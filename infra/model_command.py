"""`towline model`: versions of the dense parameters."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from embedding_store.dense_versions import DenseVersions
from embedding_store.errors import StoreError
from embedding_store.open import open_store
from embedding_store.towers import DenseParameters
from infra.config import load
from infra.errors import InfraError
from infra.local.stack import LocalStack

app = typer.Typer(no_args_is_help=True, help="Versions of the dense parameters.")
Config = Annotated[
    Path | None, typer.Option("--config", "-c", metavar="FILE", help="configuration file \\[default: ./towline.toml]")
]


@app.command("list")
def show(config: Config = None) -> None:
    """Print the kept versions, the newest first: number, events, newest event, when it was kept."""
    with _versions(config) as versions:
        for v in versions.kept():
            columns = (str(v.number), str(v.clock), _time(v.event_time_ms), _time(v.kept_ms))
            sys.stdout.write("\t".join(columns) + "\n")


@app.command()
def rollback(version: Annotated[int, typer.Argument(min=1)], config: Config = None) -> None:
    """Make the dense parameters what they were at VERSION. Trainers go on from there; deltas in flight are refused."""
    with _versions(config) as versions:
        versions.roll_back(version)
    sys.stdout.write(f"the dense parameters are those of version {version}\n")


@contextmanager
def _versions(path: Path | None) -> Iterator[DenseVersions]:
    config = LocalStack(load(path).config).connected(broker_needed=False)
    parameters = DenseParameters(config.model)
    if not parameters.size:
        raise InfraError("the model has no dense_layers and no learned_gates: there are no versions of them")
    try:
        store = open_store(config.redis)
        try:
            store.create(config.model.tables()["dense"])
            yield DenseVersions(store, parameters.keys)
        finally:
            store.close()
    except StoreError as error:
        raise InfraError(str(error)) from error


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(" ", "seconds")
