"""Servers of a benchmark's own, and services on them; nothing is left when it ends, terminated or not."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

from embedding_store.contract import EmbeddingStore
from embedding_store.open import open_store
from infra.config import TowlineConfig
from infra.local import process
from infra.local.stack import LocalStack
from ingest.kafka_topics import prepare_topics


@dataclass(frozen=True, slots=True)
class Servers:
    """Broker and store. `started`: processes on them, stopped before they are."""

    config: TowlineConfig
    stack: LocalStack
    store: EmbeddingStore
    started: list[process.ProcessRecord] = field(default_factory=list)


@contextlib.contextmanager
def servers(config: TowlineConfig) -> Iterator[Servers]:
    """Started with their topics, and gone afterwards."""
    stack = LocalStack(config, ephemeral_ports=True)
    started: list[process.ProcessRecord] = []
    try:
        stack.start_servers()
        connected = stack.connected()
        prepare_topics(connected.kafka)
        store = open_store(connected.redis)
        try:
            yield Servers(connected, stack, store, started)
        finally:
            store.close()
    finally:
        for record in started:
            process.stop(record, config.local.stop_timeout_s)
        stack.stop()


def end_on_sigterm() -> None:
    """Leave by SystemExit when terminated: what was started is stopped on the way out."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
