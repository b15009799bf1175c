"""The process: wires settings, store, refreshing thread and server."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from functools import partial
from typing import Protocol

from embedding_store.errors import StoreMisconfigured
from embedding_store.open import open_store
from embedding_store.settings import RedisSettings
from serving.errors import StartupError
from serving.events import EventSink
from serving.refresher import Refresher
from serving.server import Server, listen
from serving.service import Service
from serving.settings import ServingSettings
from serving.supervisor import Supervisor

log = logging.getLogger(__name__)


_SWITCH_S = 0.0005
"""How long a thread may keep the interpreter while others want it: Python's own 5 ms would be the loop's tail."""


class Config(Protocol):
    """The parts of the whole configuration that serving needs."""

    @property
    def redis(self) -> RedisSettings:
        """How to reach the store."""

    @property
    def serving(self) -> ServingSettings:
        """How to listen."""


def run(config: Config, events: Callable[[], EventSink] | None = None) -> None:
    """Serve until a signal; returns after an orderly end. Exits with 1 and one sentence where it can't start.

    events: makes what takes the events of POST /v1/events, where `serving.events` is set.

    The port opens before the store is reached: liveness is 200 and readiness 503 until a model is loaded.
    """
    try:
        serve(config, events)
    except StartupError as error:
        raise SystemExit(f"towline serving: {error}") from None


def serve(config: Config, events: Callable[[], EventSink] | None = None) -> None:
    """`run`, with StartupError instead of an exit."""
    if not logging.getLogger().handlers:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    sys.setswitchinterval(_SWITCH_S)
    settings = config.serving
    if settings.events and events is None:
        raise StartupError(
            "serving.events is set, and this program hands in nothing to produce with: `towline serve` does"
        )
    connect = partial(open_store, config.redis)
    if settings.workers > 1:
        try:
            Supervisor(settings, connect, events).run()
        except StoreMisconfigured as error:
            raise StartupError(str(error)) from error
        return
    listener = listen(settings.host, settings.port)
    service = Service(settings, events=events() if settings.events and events else None)
    refresher = Refresher(service, connect)
    server = Server(service)
    log.info("serving on http://%s:%d", settings.host, listener.getsockname()[1])
    refresher.start()
    try:
        server.run(sockets=[listener])
    finally:
        service.close()  # first: its work still reads the store that the thread closes
        refresher.stop()
    if service.fatal is not None:
        raise StartupError(service.fatal)
