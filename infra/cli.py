"""`towline`: the command line. Rooms that do the work are imported by the command that needs them: where serving is
installed there is no TensorFlow.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from importlib.metadata import version as distribution_version
from pathlib import Path
from typing import Annotated, Any

# Read when NumPy is loaded. Products here are of a group, or of a few users: helpers of BLAS spin longer than they
# help, and took a quarter of a trainer's processor time.
for _name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import typer
from rich.console import Console

from embedding_store.errors import SpecError, StoreMisconfigured
from infra import capacity_command, model_command, produce_command
from infra.config import TowlineConfig, load
from infra.errors import InfraError, NotRunning, PortInUse
from infra.local.ports import is_free
from infra.local.restarts import Restarts
from infra.local.stack import LocalStack
from infra.presets import Preset
from infra.show import as_toml
from infra.view import show_status
from ingest.contract import StreamMisconfigured
from native.redis_module.compiler import module_path

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
    help="Streaming online learning for recommendation: events in, fresh embeddings and recommendations out.",
)
app.add_typer(model_command.app, name="model")
app.command("plan")(capacity_command.show)
app.command("produce")(produce_command.produce)
Config = Annotated[
    Path | None, typer.Option("--config", "-c", metavar="FILE", help="configuration file \\[default: ./towline.toml]")
]
snapshot = typer.Typer(
    no_args_is_help=True,
    help="Snapshots of the store: taken beside running trainers, restored with a rewind of the stream.",
)
app.add_typer(snapshot, name="snapshot")
Folder = Annotated[
    Path | None,
    typer.Option("--folder", metavar="DIR", help="where snapshots are \\[default: snapshots in \\[local] state_dir]"),
]


class Tower(StrEnum):
    """Whose id."""

    user = "user"
    item = "item"


_out = Console()
_err = Console(stderr=True)


def main() -> None:
    """Entry point: an error of ours is one sentence on standard error and an exit code, never a traceback."""
    try:
        app()
    except InfraError as error:
        _err.print(f"towline: {error}", highlight=False, markup=False, soft_wrap=True)
        raise SystemExit(error.exit_code) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None


@app.command()
def up(
    config: Config = None,
    servers_only: Annotated[bool, typer.Option("--servers-only", help="only Redis and Kafka")] = False,
    foreground: Annotated[
        bool,
        typer.Option("--foreground", help="stay until Ctrl-C, then stop everything; a trainer that dies is restarted"),
    ] = False,
    trainers: Annotated[
        int | None, typer.Option("--trainers", min=0, max=64, help="how many trainers \\[default: \\[local] trainers]")
    ] = None,
) -> None:
    """Start what the configuration does not point to: Redis, Kafka, trainers, serving."""
    loaded = _load(config)
    stack = LocalStack(loaded)
    if not servers_only:
        stack.require_ports()
    with _ending(stack.stop if foreground else None) as ended:
        stack.start_servers()
        if not servers_only:
            stack.start_services(trainers)
        lines = stack.status()
        show_status(lines, _out)
        if not foreground:
            if any(line.health == "dead" for line in lines):  # a trainer has no port to be waited for
                raise typer.Exit(1)
            return
        restarts = Restarts(loaded.local.restart_limit, loaded.local.restart_window_s)
        while not ended.wait(timeout=1.0):
            if not (dead := [line for line in stack.status() if line.health == "dead"]):
                continue
            show_status(dead, _err)
            for line in dead:
                if line.kind != "trainer" or not restarts.allowed(line.name):
                    raise NotRunning(f"{line.name} died: the rest was stopped, its log is {line.log}")
                _err.print(f"{line.name} is started again", highlight=False)
            stack.start_services(trainers)


@app.command()
def down(config: Config = None) -> None:
    """Stop everything that `up` started. Data stays in the state directory."""
    stopped = LocalStack(_load(config)).stop()
    _out.print(f"stopped: {', '.join(stopped)}" if stopped else "nothing was running", highlight=False, soft_wrap=True)


@app.command()
def status(config: Config = None) -> None:
    """Show servers and services. Exit code 0: all run; 1: one is dead; 3: something was not started."""
    lines = LocalStack(_load(config)).status()
    show_status(lines, _out)
    healths = {line.health for line in lines}
    if code := 1 if "dead" in healths else 3 if "not started" in healths else 0:
        raise typer.Exit(code)


@app.command()
def train(
    config: Config = None,
    bootstrap: Annotated[
        str,
        typer.Option(
            metavar="FILE|topic:NAME[@FROM[..TO]]",
            help="past events to learn first: a .jsonl or .csv, with or without .gz, or a range of a topic, with times "
            "in ISO 8601",
        ),
    ] = "",
) -> None:
    """Run one trainer in the foreground. Any number of them, on any machines, share the stream."""
    _run_room("trainer", config, **({"bootstrap": bootstrap} if bootstrap else {}))


@app.command(hidden=True)
def trainer(config: Config = None) -> None:
    """The former name of `train`."""
    _run_room("trainer", config)


@app.command()
def serve(config: Config = None) -> None:
    """Run the HTTP service in the foreground."""
    _run_room("serving", config)


@app.command()
def demo(
    config: Config = None,
    once: Annotated[
        bool, typer.Option("--once", help="end after the replay; the last line is one JSON object")
    ] = False,
    rate: Annotated[int, typer.Option("--rate", min=0, help="events per second; 0: as fast as it goes")] = 2000,
) -> None:
    """Replay MovieLens 100K through the local stack and watch the model learn; preset `balanced` if none is named."""
    _module("infra.demo.run", "trainer,serving,local").run(_load(config, "balanced"), once=once, rate=rate)


@snapshot.command("create")
def create_snapshot(
    name: Annotated[str, typer.Argument(help="default: the time, UTC")] = "",
    config: Config = None,
    folder: Folder = None,
    deadline: Annotated[
        float, typer.Option("--deadline", min=0, help="seconds to try for a cut where all offsets are equal")
    ] = 10.0,
) -> None:
    """Save all shards, while trainers go on. Exact also where shards stand at different offsets: it says so."""
    _module("infra.snapshots", "serving").create_snapshot(_connected(config), folder, name, deadline, _out, _err)


@snapshot.command("list")
def list_snapshots(config: Config = None, folder: Folder = None) -> None:
    """Show the snapshots, oldest first. Exit code 1: one of them is damaged."""
    if not _module("infra.snapshots", "serving").list_snapshots(_load(config), folder, _out):
        raise typer.Exit(1)


@snapshot.command("restore")
def restore_snapshot(
    name: Annotated[str, typer.Argument(help="as `towline snapshot list` shows it")],
    config: Config = None,
    folder: Folder = None,
    replay: Annotated[
        bool,
        typer.Option("--replay/--no-replay", help="learn again what came after it; or go on where the store stands"),
    ] = True,
    exclude: Annotated[
        list[str] | None,
        typer.Option(
            "--exclude",
            metavar="TOPIC:PARTITION:FROM-TO",
            help="records to be left out from now on, FROM and TO included; TOPIC by id, or by name; repeatable",
        ),
    ] = None,
    drop_excluded: Annotated[
        bool, typer.Option("--drop-excluded", help="learn again what was excluded since the snapshot was taken")
    ] = False,
) -> None:
    """Put the store back. Trainers may run: they wait, then go on from the snapshot's offsets by themselves."""
    _module("infra.snapshots", "serving").restore_snapshot(
        _connected(config), folder, name, exclude or [], _out, _err, replay=replay, drop_excluded=drop_excluded
    )


@app.command()
def backtest(
    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA",
            help="CSV, JSON lines or Parquet, the first two also .gz; or topic:NAME[@FROM][..TO], times in ISO 8601",
        ),
    ],
    config: Config = None,
    store: Annotated[
        str, typer.Option("--store", metavar="URL", help="an empty Redis to learn in, redis://…; default: in memory")
    ] = "memory",
    user_column: Annotated[str, typer.Option("--user-column")] = "user_id",
    item_column: Annotated[str, typer.Option("--item-column")] = "item_id",
    time_column: Annotated[
        str, typer.Option("--time-column", help="empty: the rows are in stream order")
    ] = "timestamp",
    label_column: Annotated[str, typer.Option("--label-column", help="empty: every row is a positive")] = "",
    positive_if: Annotated[str, typer.Option("--positive-if", metavar="CONDITION", help="of the label")] = "label > 0",
    time_unit: Annotated[str, typer.Option("--time-unit", help="s, ms, us, ns, iso or auto")] = "auto",
    delimiter: Annotated[str, typer.Option("--delimiter", help="of a CSV; empty: found out")] = "",
    header: Annotated[
        bool | None, typer.Option("--header/--no-header", help="default: by the columns' names, which may be places")
    ] = None,
    warmup: Annotated[float, typer.Option("--warmup", min=0, max=0.99, help="share of events not scored")] = 0.2,
    repeats: Annotated[
        bool, typer.Option("--repeats/--first-only", help="learn again what a user has already had")
    ] = False,
    negatives: Annotated[
        bool, typer.Option("--negatives/--positives-only", help="learn rows that are not positive as negatives")
    ] = False,
    batch_events: Annotated[int, typer.Option("--batch-events", min=0, help="of a micro-batch; 0: as configured")] = 0,
    frozen: Annotated[
        bool, typer.Option("--frozen/--no-frozen", help="measure a copy frozen after the warm-up too")
    ] = True,
    plot: Annotated[Path | None, typer.Option("--plot", metavar="PNG", help="draw HR@10 over time")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="the last line is one JSON object")] = False,
) -> None:
    """Test, then learn, every event of a file or topic by the trainer's own code, and tell how well it did."""
    settings = _load(config)
    if data.startswith("topic:") and not settings.kafka.bootstrap_servers:
        try:
            settings = settings.model_copy(update={"kafka": LocalStack(settings).connected().kafka})
        except NotRunning as error:
            raise InfraError(
                f"{data} is read from a broker: set [kafka] bootstrap_servers, or `towline up` for a local one"
            ) from error
    redis = None if store == "memory" else settings.redis.model_copy(update={"url": store, "sentinels": ()})
    command = _module("trainer.backtest.command", "trainer")
    columns = command.Columns(
        user_column, item_column, time_column or None, label_column or None, positive_if, time_unit,
        delimiter or None, header,
    )  # fmt: skip
    ingest = settings.ingest
    if batch_events:
        ingest = ingest.model_copy(update={"batch_events": batch_events})
    try:
        command.run(
            data, columns, settings.model, settings.trainer, ingest, warmup=warmup, first_only=not repeats,
            negatives=negatives, frozen=frozen, picture=plot, as_json=as_json, kafka=settings.kafka, redis=redis,
        )  # fmt: skip
    except (command.BacktestError, SpecError) as error:
        raise InfraError(str(error)) from error


@app.command("inspect")
def inspect_id(
    tower: Annotated[Tower, typer.Argument(metavar="user|item")],
    entity: Annotated[str, typer.Argument(metavar="ID")],
    config: Config = None,
    newest: Annotated[
        int, typer.Option("--newest", min=0, max=10_000_000, help="records of each partition that are searched")
    ] = 10_000,
    timeout: Annotated[float, typer.Option("--timeout", min=0, help="seconds for the search")] = 10.0,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object")] = False,
) -> None:
    """All that store and topic know of one id, and why an event of it isn't there."""
    stack = LocalStack(_load(config))
    try:
        connected = stack.connected()
    except NotRunning:
        connected = stack.connected(broker_needed=False)  # what the store knows is better than nothing
    command = _module("infra.inspection.command", "events")
    command.run(connected, tower.value, entity, newest=newest, timeout_s=timeout, as_json=as_json, out=_out)


@app.command("config")
def show_config(config: Config = None) -> None:
    """Print the configuration in effect as TOML, secrets masked."""
    sys.stdout.write(as_toml(_load(config)))


@app.command()
def module() -> None:
    """Print where the Redis module is, built now if need be; for `redis-server --loadmodule "$(towline module)"`."""
    found = module_path()
    if not found.path:
        raise InfraError(found.why_not)
    sys.stdout.write(f"{found.path}\n")


@app.command()
def version() -> None:
    """Print the version."""
    sys.stdout.write(f"towline {distribution_version('towline')}\n")


def _load(path: Path | None, preset: Preset | None = None) -> TowlineConfig:
    return load(path, preset=preset).config


def _connected(path: Path | None) -> TowlineConfig:
    """Servers that the configuration leaves out are those of the local stack, if it is up."""
    return LocalStack(_load(path)).connected(broker_needed=False)


def _run_room(room: str, path: Path | None, **options: Any) -> None:
    # Servers that the configuration leaves out are those of the local stack, if it is up.
    loaded = _load(path)
    config = LocalStack(loaded).connected(broker_needed=room == "trainer" or loaded.serving.events)
    metrics_port = config.trainer.metrics_port
    if room == "trainer" and metrics_port and not is_free(metrics_port):
        raise PortInUse("[trainer] metrics_port", metrics_port)
    main = _module(f"{room}.main", room)
    if room == "serving" and config.serving.events:
        sink = _module("infra.event_sink", "events").KafkaEventSink
        options["events"] = partial(sink, config.kafka, config.ingest, config.model.feature_schema)
    try:
        main.run(config, **options)
    except (SpecError, StoreMisconfigured, StreamMisconfigured) as error:  # those that need a person
        raise InfraError(str(error)) from error


def _module(name: str, extra: str) -> Any:
    """Imports a room's module. Raises InfraError where a package of its extra is not installed."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise InfraError(f"{error.name} is not installed: `pip install 'towline[{extra}]'`") from error


class _ending:  # noqa: N801  reads as a statement
    """Turns SIGINT and SIGTERM into an event while the block runs, and calls `finish` at its end."""

    def __init__(self, finish: Callable[[], object] | None) -> None:
        self._finish = finish
        self._ended = threading.Event()

    def __enter__(self) -> threading.Event:
        if self._finish:
            self._before = signal.signal(signal.SIGTERM, lambda *_: self._end())
        return self._ended

    def _end(self) -> None:
        self._ended.set()
        raise KeyboardInterrupt

    def __exit__(self, *_: object) -> None:
        if self._finish:
            signal.signal(signal.SIGTERM, self._before)
            self._finish()


if __name__ == "__main__":
    main()
