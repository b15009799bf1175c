"""The plan's arithmetic, and what it says of a row's memory against a server's own account."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import redis

from embedding_store.contract import ENTRY, ORDER, Flush, Range, Source
from embedding_store.model import ModelSettings
from embedding_store.open import open_store
from embedding_store.settings import RedisSettings
from embedding_store.spec import Adagrad, Sgd, TableSpec
from infra.capacity import Costs, Limits, Load, plan, row_bytes
from native.ragged import Ragged
from native.redis_module.compiler import module_path
from tests.infra.test_cli import towline
from tests.servers import running, server_names

ROWS, CALL = 40_000, 4_000
SMALL = Load(events_per_s=10_000, users=1_000_000, items=100_000, queries_per_s=50)
MODEL = ModelSettings(dim=64)


def test_what_a_load_asks_for_grows_with_it() -> None:
    small = plan(MODEL, SMALL, Costs(), Limits())
    assert (small.trainers, small.masters, small.shards) == (1, 1, MODEL.shards)
    assert small.warnings == ()
    faster = plan(MODEL, replace(SMALL, events_per_s=1_000_000), Costs(), Limits())
    assert faster.trainers > 5 * small.trainers
    assert faster.masters_for == "processor"
    assert faster.partitions >= 2 * faster.trainers
    larger = plan(MODEL, replace(SMALL, users=1_000_000_000), Costs(), Limits())
    assert larger.masters_for == "memory"
    assert larger.masters > larger.store_gib / Limits().store_gib - 1
    assert larger.shards >= 2 * larger.masters


def test_limits_of_a_table_bound_its_memory() -> None:
    bounded = MODEL.model_copy(update={"user_max_rows": 1000})
    history = {t.name: t for t in plan(bounded, SMALL, Costs(), Limits()).tables}["history"]
    assert history.rows == 1000


def test_what_does_not_fit_is_said() -> None:
    much = plan(MODEL, replace(SMALL, items=100_000_000), Costs(), Limits())
    assert "exact scan of 100,000,000 items" in " ".join(much.warnings)
    many = plan(MODEL, replace(SMALL, users=10_000_000_000), Costs(), Limits(flush_ms=5))
    assert "flush every" in " ".join(many.warnings)


@pytest.mark.parametrize(
    ("load", "named"),
    [
        ({"events_per_s": 0.0}, "events_per_s is 0.0"),
        ({"users": -1}, "users is -1"),
        ({"queries_per_s": float("nan")}, "nan"),
    ],
)
def test_a_load_that_is_none_is_refused(load: dict[str, float], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        plan(MODEL, replace(SMALL, **load), Costs(), Limits())


@pytest.mark.servers
@pytest.mark.parametrize(
    ("spec", "entries"),
    [
        (TableSpec(name="t", dim=64, optimizer=Sgd(learning_rate=0.1)), 0),
        (TableSpec(name="t", dim=128, optimizer=Adagrad(learning_rate=0.1), max_rows=10**9), 0),
        (TableSpec(name="t", kind="sequence", length=20), 20),
        (TableSpec(name="t", kind="sequence", length=100), 100),
        (TableSpec(name="t", kind="record", length=4096), 72),
    ],
    ids=["sgd", "adagrad", "history of 20", "history of 100", "record"],
)
def test_a_row_takes_what_is_planned(tmp_path: Path, spec: TableSpec, entries: int) -> None:
    """Within a fifth; ids of 12 bytes."""
    folder = tmp_path / "server"
    folder.mkdir()
    module = module_path().path
    assert module
    with running(server_names()[0], folder, "--loadmodule", str(module)) as server:
        store, raw = open_store(RedisSettings(url=server.url, backend="module")), redis.Redis.from_url(server.url)
        store.create(spec)
        used = int(raw.info("memory")["used_memory"])
        _fill(store, spec, ROWS, entries)
        per_row = (int(raw.info("memory")["used_memory"]) - used) / ROWS
        raw.close()
        store.close()
    assert row_bytes(spec, entries=entries) == pytest.approx(per_row, rel=0.2)


def _fill(store, spec: TableSpec, rows: int, entries: int) -> None:  # type: ignore[no-untyped-def]
    source = Source("topic", 0)
    for shard in range(spec.shards):
        store.seek(spec.name, shard, source, None, 0, "first start")
    for call, first in enumerate(range(0, rows, CALL)):
        number = np.arange(first, first + CALL)
        appends = np.zeros(CALL * entries, ENTRY)
        appends["place"] = np.arange(len(appends))
        orders = np.zeros(CALL, ORDER)
        sequence, record = spec.kind == "sequence", spec.kind == "record"
        flush = Flush(
            generation=0,
            ranges=(Range(source, call, call + 1),),
            events=CALL,
            event_time_ms=1,
            produced_ms=1,
            now_ms=1,
            keys=(number + 10**11).astype(np.uint64) * np.uint64(7919),
            counts=np.ones(CALL, np.int64),
            positives=np.ones(CALL, np.float32),
            checks=number.astype(np.uint32),
            ids=Ragged.of(b"%012d" % i for i in number.tolist()),
            gradients=np.ones((CALL, spec.dim), np.float32) if spec.dim else None,
            appends=appends if sequence else None,
            append_rows=np.repeat(np.arange(CALL), entries) if sequence else None,
            values=Ragged.of([b"v" * entries] * CALL) if record else None,
            value_orders=orders if record else None,
            value_rows=np.arange(CALL) if record else None,
        )
        assert {reply.outcome for reply in store.apply(spec.name, flush)} == {"applied"}


def test_the_command(tmp_path: Path) -> None:
    load = ("--events-per-s", "1e6", "--users", "900000000", "--items", "100000000", "--queries-per-s", "1000")
    shown = towline(tmp_path, "plan", *load)
    assert shown.returncode == 0, shown.stderr
    assert "Redis masters" in shown.stdout
    as_json = json.loads(towline(tmp_path, "plan", *load, "--json").stdout)
    assert as_json["trainers"] > 1
    assert as_json["warnings"]
    wrong = towline(tmp_path, "plan", *load, "--busy", "2")
    assert wrong.returncode == 1
    assert "busy is 2" in wrong.stderr
