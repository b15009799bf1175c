"""Bytes on the wire for one training step, both ways, beside those of TFRA's Redis commands for the same keys.

Ours: lookup and apply of an item and a user table with Adam, with ids, check bits and own events as the trainer sends
them, by the backend itself with the shards that a table has by default. TFRA keeps value, m and v of a table in three
hashes of eight slices each: 48 HMGET and 48 HMSET a step, fields of 8 bytes. Both are counted by the servers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.store.data import OPTIMIZERS, SOURCE, START, flush_of, gradients_of, keys_of, spec_of
from benchmarks.store.exchange import Exchange, Request
from benchmarks.store.requests import bulk_bytes, command
from benchmarks.store.servers import Served
from embedding_store.contract import I64
from embedding_store.open import open_store
from embedding_store.settings import RedisSettings

TABLES = ("item", "user")
SHARDS = 4
SLICES = 8
HASHES = ("value", "adam_m", "adam_v")
ZIPF = 0.8


def measure(module: Served, stock: Served, keys: int, dim: int) -> dict[str, Any]:
    """Ratios and bytes of a step: of `keys` distinct rows with one own event each, and of `keys` Zipf-like events."""
    rows = np.arange(keys)
    rng = np.random.default_rng(6)
    share = 1.0 / np.arange(1, 5 * keys + 1) ** ZIPF
    events = rng.choice(5 * keys, keys, p=share / share.sum())
    distinct, of_event = np.unique(events, return_inverse=True)
    out: dict[str, Any] = {}
    for name, drawn, of in (("distinct", rows, None), ("zipf", distinct, of_event)):
        ours = _ours(module, f"wire_{name}", drawn, of, dim)
        theirs = _tfra(stock, drawn, dim)
        out[name] = {"over_tfra": round(ours / theirs, 4), "bytes": ours, "tfra_bytes": theirs, "keys": 2 * len(drawn)}
    return out


def _ours(module: Served, name: str, rows: I64, of_event: I64 | None, dim: int) -> int:
    store = open_store(RedisSettings(url=module.url, timeout_s=60))
    gradients = gradients_of(len(rows), dim)
    events = len(rows) if of_event is None else len(of_event)
    for table in TABLES:
        store.create(spec_of(f"{name}_{table}", OPTIMIZERS["adam"], SHARDS, dim))
        for shard in range(SHARDS):
            store.seek(f"{name}_{table}", shard, SOURCE, None, START, "benchmark")

    def step(start: int) -> None:
        for table in TABLES:
            store.lookup(f"{name}_{table}", keys_of(rows), with_ids=False)
            flush = flush_of(rows, gradients, start, start + events, of_event)
            if {reply.outcome for reply in store.apply(f"{name}_{table}", flush)} != {"applied"}:
                raise RuntimeError("a step was not applied")

    step(START)  # afterwards every row is there, and its id
    counted = counted_bytes(module, lambda: step(START + events))
    store.close()
    return counted


def _tfra(stock: Served, rows: I64, dim: int) -> int:
    keys = keys_of(rows)
    slices = [keys[keys % np.uint64(SLICES) == s].tolist() for s in range(SLICES)]
    value = bytes(4 * dim)
    reads, writes = [], []
    for table in TABLES:
        for part in HASHES:
            for s, mine in enumerate(slices):
                name = f"towers_{table}_embedding_{part}_mht_1of1{{{s}}}".encode()
                fields = [key.to_bytes(8, "little") for key in mine]
                reply_bytes = len(b"*%d\r\n" % len(fields)) + len(fields) * bulk_bytes(len(value))
                reads.append(Request(command([b"HMGET", name, *fields]), reply_bytes))
                writes.append(
                    Request(command([b"HMSET", name, *(word for field in fields for word in (field, value))]))
                )
    exchange = Exchange(stock.socket, max(request.reply_bytes or 0 for request in reads))

    def send(wanted: Sequence[Request]) -> None:
        for request in wanted:
            exchange.seconds(request)

    send(writes)  # afterwards every field is there
    counted = counted_bytes(stock, lambda: send([*reads, *writes]))
    exchange.close()
    return counted


def counted_bytes(served: Served, step: Callable[[], None]) -> int:
    """What the server received and sent for `step`, by its own count."""
    wire = served.wire()

    def told() -> int:
        lines = dict(line.split(":", 1) for line in wire.call("INFO", "stats").decode().splitlines() if ":" in line)
        return int(lines["total_net_input_bytes"]) + int(lines["total_net_output_bytes"])

    first, second = told(), told()
    step()
    third = told()
    wire.close()
    return third - second - (second - first)  # INFO itself is counted too
