"""The process that follows the store and keeps the mirror of several workers."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable

from embedding_store.contract import EmbeddingStore
from serving.crew import CrewMemory
from serving.freshness import Freshness
from serving.refresher import Refresher
from serving.service import Service
from serving.settings import ServingSettings

log = logging.getLogger(__name__)

HOPELESS = 3
"""Exit code where starting it again can't help: it has said why."""
_LOOK_S = 0.2


def write(memory: CrewMemory, settings: ServingSettings, connect: Callable[[], EmbeddingStore]) -> int:
    """Follow until SIGTERM, or until the parent is gone: an exit code."""
    service = Service(settings, freshness=Freshness(memory.freshness))
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    parent = os.getppid()
    refresher = Refresher(service, connect, memory.board)
    refresher.start()
    while refresher.is_alive() and os.getppid() == parent and not ended.wait(_LOOK_S):
        pass
    refresher.stop()
    service.close()
    if service.fatal is not None:
        memory.say(service.fatal)
        return HOPELESS
    return 0 if service.crash is None else 1
