"""What `towline inspect` prints."""

from __future__ import annotations

import json
import math
import time
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from typing import Any

import numpy as np
from pydantic import ValidationError
from rich.console import Console
from rich.text import Text

from embedding_store.contract import Source
from embedding_store.errors import StoreError
from embedding_store.open import open_store
from infra.config import TowlineConfig
from infra.errors import InfraError
from infra.inspection.facts import Facts, gather
from infra.inspection.verdict import reasons, waiting
from ingest.topic_search import search

_FIRST = 8  # values of a vector, entries of a history


def run(
    config: TowlineConfig, tower: str, entity: str, *, newest: int, timeout_s: float, as_json: bool, out: Console
) -> None:
    """Gather, and print. Raises InfraError."""

    def look(identity: bytes, key: int) -> Any:
        return search(
            config.kafka, config.ingest, tower, identity, key, newest=newest, timeout_s=timeout_s,
            features=config.model.feature_schema,
        )  # fmt: skip

    try:
        with closing(open_store(config.redis)) as store:
            facts = gather(store, tower, entity, config.kafka.topic, look)
    except ValidationError as error:
        raise InfraError("the published model is of another version: upgrade this command or the trainers") from error
    except StoreError as error:
        raise InfraError(str(error)) from error
    told = document(facts, time.time_ns() // 1_000_000)
    if as_json:
        out.print(Text(json.dumps(told, ensure_ascii=False)), soft_wrap=True)
        return
    line = partial(_line, out)
    line(tower, f"{entity!a}, key {facts.key}, shard {facts.shard} of {facts.spec.shards} of {facts.spec.name!r}")
    _row(told["row"], line)
    for source in told["sources"]:
        end = "" if source["end"] is None else f" of {source['end']}, {source['end'] - source['offset']} behind"
        line("learned", f"{source['source']} to offset {source['offset']}{end}")
    if facts.found is not None:
        stream = told["stream"]
        line("stream", f"{stream['records']} newest records: {stream['events']} of it, {stream['waiting']} not learned")
        if stream["newest"]:
            line("newest", "partition {partition} offset {offset}, {time}".format_map(stream["newest"]))
    for reason in told["reasons"]:
        line("so", reason)


def document(facts: Facts, now_ms: int) -> dict[str, Any]:
    """All of it, as JSON."""
    row = facts.row
    bounds = {} if facts.found is None else {Source(*p): end for p, (_, end) in facts.found.bounds.items()}
    offsets = {**dict.fromkeys(bounds, 0), **facts.status.offsets}
    return {
        "tower": facts.tower,
        "id": facts.identity,
        "key": facts.key,
        "table": facts.spec.name,
        "shard": facts.shard,
        "clock": facts.status.clock,
        "row": None
        if row is None
        else {
            "step": row.clock,
            "events": row.events,
            "updated_at": _iso(row.updated_ms),
            "age_s": round((now_ms - row.updated_ms) / 1000, 3),
            "norm": None if row.vector is None else _number(float(np.linalg.norm(row.vector))),
            "first_values": None if row.vector is None else [_number(float(v)) for v in row.vector[:_FIRST]],
            "history": [
                {"item_id": e.item_id, "time": _iso(e.time_ms), "weight": e.weight, "partition": e.partition,
                 "offset": e.offset}
                for e in row.history
            ],
        },
        "sources": [
            {"source": str(source), "offset": offset, "end": bounds.get(source)}
            for source, offset in sorted(offsets.items())
        ],
        "stream": None if facts.found is None else _stream(facts),
        "reasons": reasons(facts),
    }  # fmt: skip


def _stream(facts: Facts) -> dict[str, Any]:
    assert facts.found is not None  # noqa: S101  asked before
    events = [one for one in facts.found.sightings if not one.refused and not one.tombstone]
    last = events[-1] if events else None
    return {
        "records": sum(to - start for start, to in facts.found.searched.values()),
        "events": len(events),
        "waiting": len(waiting(facts)),
        "refused": sum(bool(one.refused) for one in facts.found.sightings),
        "tombstones": sum(one.tombstone for one in facts.found.sightings),
        "newest": last and {"partition": last.partition, "offset": last.offset, "time": _iso(last.time_ms)},
    }


def _row(row: dict[str, Any] | None, line: Any) -> None:
    if row is None:
        line("row", "none")
        return
    line("row", f"{row['events']} events, last at step {row['step']}, {row['updated_at']}, {row['age_s']:.1f} s ago")
    if row["first_values"] is not None:
        line("vector", f"norm {row['norm']}: {' '.join(map(str, row['first_values']))} …")
    for i, entry in enumerate(row["history"][:_FIRST]):
        line("" if i else "history", f"{entry['item_id']!a} {entry['time']}, weight {entry['weight']:g}")
    if len(row["history"]) > _FIRST:
        line("", f"and {len(row['history']) - _FIRST} before")


def _line(out: Console, name: str, text: str) -> None:
    out.print(Text(f"{name.ljust(8)} {text}"), soft_wrap=True)


def _number(value: float) -> float | None:
    """None for NaN and infinity, which JSON has not."""
    return round(value, 6) if math.isfinite(value) else None


def _iso(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
