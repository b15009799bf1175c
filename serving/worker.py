"""A process that answers, of several."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable

from embedding_store.contract import EmbeddingStore
from embedding_store.open import opened_later
from serving.crew import CrewMemory
from serving.events import EventSink
from serving.follower import Follower
from serving.freshness import Freshness
from serving.metrics import Metrics
from serving.server import Server
from serving.service import Service
from serving.settings import ServingSettings

log = logging.getLogger(__name__)


def work(
    worker: int,
    listener: socket.socket,
    memory: CrewMemory,
    settings: ServingSettings,
    connect: Callable[[], EmbeddingStore],
    events: Callable[[], EventSink] | None,
) -> int:
    """Answer at `listener` until told to end: 0; 1 where it failed."""
    metrics = Metrics(memory.metrics_of(worker), memory.metrics_of_all)
    metrics.begin()
    service = Service(
        settings,
        freshness=Freshness(memory.freshness),
        metrics=metrics,
        events=events() if settings.events and events else None,
        crew=memory.crew,
    )
    store = opened_later(connect)
    follower = Follower(service, memory.board, worker, store)
    server = Server(service)
    server.be_told_by_parent()
    follower.start()
    try:
        server.run(sockets=[listener])
    finally:
        service.close()  # first: its work still reads the mirror and the store
        follower.stop()
        store.close()
    return 0 if service.crash is None else 1
