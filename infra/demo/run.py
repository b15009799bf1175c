"""The demo from start to end: servers, trainer, service, replay, view; and nothing left behind."""

from __future__ import annotations

import contextlib
import json
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.live import Live

from embedding_store.open import open_store
from infra.config import TowlineConfig
from infra.demo import movielens
from infra.demo.probe import FreshnessProbe
from infra.demo.replay import Replay
from infra.demo.standing import Observer, Standing
from infra.demo.view import render
from infra.errors import InfraError, Interrupted
from infra.local.ports import LOOPBACK, ephemeral
from infra.local.services import require_port
from infra.local.stack import Endpoints, LocalStack
from ingest.kafka_topics import prepare_topics

_LOOK_EVERY_S = 0.25
_START_TIMEOUT_S = 120.0  # the first start of a trainer compiles its kernels
_STALLED_AFTER_S = 300.0


class DemoFailed(InfraError):
    """A part of the demo ended or stood still."""


def run(config: TowlineConfig, *, once: bool, rate: int) -> None:
    """Replay MovieLens 100K through the whole product and show it.

    once: end after the replay with one JSON object as the last line; otherwise run until Ctrl-C. rate: events per
    second, 0 for as fast as it goes. Raises InfraError with the remedy where a part can't be had or ends early.
    """
    console = Console(stderr=once)  # standard output is for the result then
    config = own_servers(config)
    require_port(config.serving)
    console.print("reading MovieLens 100K …")
    # What may have to be downloaded first is had before anything is started: Ctrl-C ends a download at once.
    ratings = movielens.load()
    LocalStack(config).fetch()
    summary = None
    with tempfile.TemporaryDirectory(prefix="towline-demo-") as folder, _interrupts() as stopped:
        local = config.local.model_copy(update={"state_dir": Path(folder)})
        stack = LocalStack(config.model_copy(update={"local": local}), ephemeral_ports=True, stopping=stopped.is_set)
        try:
            with contextlib.suppress(Interrupted):
                console.print("starting the store and the broker …")
                endpoints = stack.start_servers()
                console.print("starting a trainer and the service …")
                prepare_topics(stack.connected().kafka)
                stack.start_services()
                replay = Replay(stack.connected().kafka, ratings, rate)
                summary = _watch(stack, endpoints, replay, console, once=once, stopped=stopped)
        finally:
            console.print("stopping …")
            stack.stop()
    if summary is not None:
        print(json.dumps(summary))


def own_servers(config: TowlineConfig) -> TowlineConfig:
    """The configured model and trainer, every positive measured, on servers of the demo's own.

    Whatever Kafka and Redis the configuration points to are left alone: a replay must not end up in a real topic.
    """
    trainer = {"evaluate_share": 1.0, "evaluate_k": 10, "metrics_host": LOOPBACK, "metrics_port": ephemeral()}
    # No keys: the curl line works as it is. No drain: there is no balancer to tell.
    serving = {"host": LOOPBACK, "port": config.serving.port or ephemeral(), "api_keys": (), "drain_s": 0.0}
    return TowlineConfig(
        ingest=config.ingest.model_copy(update={"codec": "json"}),
        model=config.model,
        trainer=config.trainer.model_copy(update=trainer),
        serving=config.serving.model_copy(update=serving),
        local=config.local.model_copy(update={"kafka_port": 0, "redis_port": 0, "trainers": 1}),
    )


def _watch(
    stack: LocalStack, endpoints: Endpoints, replay: Replay, console: Console, *, once: bool, stopped: threading.Event
) -> dict[str, object] | None:
    """Show the replay until it is over (`once`) or until told to stop; the summary of a replay that came to its end."""
    config = stack.connected()
    probe = FreshnessProbe(config.serving.host, config.serving.port, replay)
    store = open_store(config.redis)
    metrics_url = f"http://{config.trainer.metrics_host}:{config.trainer.metrics_port}/metrics"
    observer = Observer(store, metrics_url, replay, probe)
    curl = f"curl http://{config.serving.host}:{config.serving.port}/v1/embeddings/user/{replay.first_user}"
    try:
        with Live(console=console, refresh_per_second=4, transient=False) as live:
            _await_trainer(stack, observer, stopped)
            replay.start()
            probe.start()
            moved = (0, time.monotonic())
            while not stopped.wait(_LOOK_EVERY_S):
                standing = observer.look()
                live.update(render(standing, replay.total, endpoints, curl))
                _raise_if_dead(stack, replay)
                if standing.applied != moved[0] or not replay.is_alive():
                    moved = (standing.applied, time.monotonic() if standing.applied != moved[0] else moved[1])
                finished = not replay.is_alive() and standing.applied + standing.dead_letters >= replay.sent
                if once and finished:
                    break
                if not finished and time.monotonic() - moved[1] > _STALLED_AFTER_S:
                    raise DemoFailed(
                        f"nothing was learned for {_STALLED_AFTER_S:.0f} s at event {standing.applied}; "
                        "see the trainer's log"
                    )
        console.print()
        return _summary(observer.look(), observer, endpoints) if once and not stopped.is_set() else None
    finally:
        replay.stop()
        probe.stop()
        store.close()


def _await_trainer(stack: LocalStack, observer: Observer, stopped: threading.Event) -> None:
    """Until the trainer answers: events sent before that would only measure how long TensorFlow takes to import."""
    deadline = time.monotonic() + _START_TIMEOUT_S
    while not stopped.wait(_LOOK_EVERY_S) and not observer.trainer_answers():
        _raise_if_dead(stack, None)
        if time.monotonic() > deadline:
            raise DemoFailed(f"the trainer did not start within {_START_TIMEOUT_S:.0f} s")


def _raise_if_dead(stack: LocalStack, replay: Replay | None) -> None:
    if replay is not None and replay.error is not None:
        raise DemoFailed(f"the replay stopped: {replay.error}") from replay.error
    for line in stack.status():
        # A server that died is waited for, as in production: only the services are the demo's own.
        if line.health == "dead" and line.kind in ("trainer", "serving"):
            last = Path(line.log).read_text(errors="replace").strip().splitlines()[-1:] if line.log else []
            raise DemoFailed(f"{line.name} ended: {last[0] if last else 'it left no log'}")


def _summary(standing: Standing, observer: Observer, endpoints: Endpoints) -> dict[str, object]:
    return {
        "events": standing.applied,
        "dead_letters": standing.dead_letters,
        "events_per_s": round(observer.mean_events_per_s(), 1),
        "hr10": None if standing.hr10 is None else round(standing.hr10, 4),
        "hr10_popularity": None if standing.hr10_popularity is None else round(standing.hr10_popularity, 4),
        "freshness_p50_ms": standing.freshness_p50_ms,
        "freshness_p99_ms": standing.freshness_p99_ms,
        "broker": endpoints.broker_name,
        "store": endpoints.store_name,
    }


@contextlib.contextmanager
def _interrupts() -> Iterator[threading.Event]:
    """Ctrl-C, SIGTERM and a closed terminal all end the demo in order."""
    stopped = threading.Event()
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, lambda *_: stopped.set()) for number in numbers]
    try:
        yield stopped
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
