"""Trainer processes of a benchmark as their operator sees them: alive, how far, and what they say of themselves."""

from __future__ import annotations

import time
import urllib.request

from prometheus_client.parser import text_string_to_metric_families

from embedding_store.contract import EmbeddingStore
from embedding_store.errors import UnknownTable
from infra.local import process
from infra.local.ports import ephemeral, is_free


def check(started: list[process.ProcessRecord], deadline_s: float) -> None:
    """Raises RuntimeError with the last lines of a log if a trainer has ended, or past time.monotonic()."""
    dead = [record for record in started if not process.is_alive(record)]
    if dead:
        raise RuntimeError("a trainer ended:\n" + process.last_lines(dead[0].log))
    if time.monotonic() > deadline_s:
        raise RuntimeError("no end within the deadline:\n" + process.last_lines(started[0].log))


def clock(store: EmbeddingStore) -> int:
    """Usable events that items and histories have on every shard; -1 before a trainer has declared the tables."""
    try:
        return min(s.clock for table in ("item", "history") for s in store.status(table))
    except UnknownTable:
        return -1


def metrics(port: int) -> dict[str, float]:
    """A trainer's samples, by name and ranking; empty until it answers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=2) as response:
            text = response.read().decode()
    except OSError:
        return {}
    samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
    return {f"{s.name}{{{r}}}" if (r := s.labels.get("ranking")) else s.name: float(s.value) for s in samples}


def ports(n: int) -> int:
    """The first of n free ports in a row."""
    while True:
        first = ephemeral()
        if all(is_free(first + number) for number in range(1, n)):
            return first
