"""What is sent, read back by a plain reader: struct and slices, field by field."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from embedding_store.contract import ENTRY, ORDER, Flush, OwnEvents, Range, Source
from embedding_store.errors import BadRequest
from embedding_store.flush_parts import parts_of
from embedding_store.module_store import flush_blob
from embedding_store.module_store.flush_blob import FlushBlob
from embedding_store.orders import NO_TIME
from embedding_store.spec import Adagrad, Add, TableSpec
from embedding_store.validation import checked_flush
from native.ragged import Ragged

VECTORS = TableSpec(name="item", dim=3, shards=4, optimizer=Adagrad())
SEQUENCES = TableSpec(name="history", kind="sequence", length=5, shards=3)
RECORDS = TableSpec(name="feature", kind="record", length=300, shards=2)
DENSE = TableSpec(name="tower", kind="dense", dim=7, shards=1, optimizer=Add())
SPECS = [VECTORS, SEQUENCES, RECORDS, DENSE]
HEAD = struct.Struct("<2I5q6I3Q2IQ")


def random_flush(spec: TableSpec, rng: np.random.Generator, n: int, *, full: bool) -> Flush:
    """A call that fits the table; full: with every column that there is. Ids are a part of a longer buffer."""

    def orders(m: int) -> np.ndarray:
        out = np.empty(m, ORDER)
        out["time_ms"], out["place"] = rng.integers(0, 2**40, m), rng.integers(0, 2**50, m)
        out["partition"] = rng.integers(0, 2**32, m)
        return out

    def ragged(m: int, longest: int) -> Ragged:
        bounds = 5 + np.concatenate([[0], np.cumsum(rng.integers(0, longest, m))]).astype(np.int64)
        return Ragged(bounds, rng.integers(0, 256, bounds[-1] + 3).astype(np.uint8))

    keys = rng.choice(2**40, n, replace=False).astype(np.uint64)
    counts = rng.integers(0, 3, n)
    columns: dict[str, object] = {}
    if full and spec.kind == "sequence":
        appends = np.zeros(2 * n, ENTRY)
        for name in ("time_ms", "place", "item", "partition"):
            appends[name] = rng.integers(0, 2**31, 2 * n)
        appends["weight"] = rng.random(2 * n)
        columns = {"appends": appends, "append_rows": rng.integers(0, max(n, 1), 2 * n)}
    elif full and spec.kind == "record":
        columns = {
            "values": ragged(2 * n, 200), "value_orders": orders(2 * n), "value_rows": rng.integers(0, max(n, 1), 2 * n)
        }  # fmt: skip
    elif full:
        columns = {"gradients": rng.normal(size=(n, spec.dim)).astype(np.float32), "mode": "deltas"}
        if spec.state_dim:
            columns["state_deltas"] = rng.random((n, spec.state_dim)).astype(np.float32)
    if full:
        rows = np.repeat(np.arange(n), counts)
        columns["own_events"] = OwnEvents(rows, orders(len(rows)), rng.random(len(rows)).astype(np.float32))
        forget = np.concatenate([keys[:4], keys[:2], np.array([2**50, 2**51, 2**50], np.uint64)])
        columns |= {
            "forget": forget, "forget_orders": orders(len(forget)),
            "forget_checks": rng.integers(0, 2**32, len(forget)).astype(np.uint32),
        }  # fmt: skip
    flush = Flush(
        generation=3, ranges=(Range(Source("clicks-é", 0), 5, 9), Range(Source("a:b", 77), 0, 2**62)), events=11,
        event_time_ms=12, produced_ms=13, now_ms=14, keys=keys, counts=counts,
        positives=rng.random(n).astype(np.float32), checks=rng.integers(0, 2**32, n).astype(np.uint32),
        ids=ragged(n, 40), **columns,
    )  # fmt: skip
    for value in (flush.keys, flush.counts, flush.ids.data, flush.gradients, flush.appends, flush.forget):
        if value is not None:
            value.flags.writeable = False
    return checked_flush(spec, flush)


def written(spec: TableSpec, flush: Flush, part) -> bytes:
    blob = FlushBlob(spec, flush, part)
    out = np.full(blob.size + 2, 0xAA, np.uint8)
    blob.write(out[1:-1])
    assert (out[0], out[-1]) == (0xAA, 0xAA)
    return out[1:-1].tobytes()


class Reader:
    def __init__(self, blob: bytes) -> None:
        self.rest = blob

    def column(self, form: str, n: int) -> list:
        size = struct.calcsize(f"<{n}{form}")
        taken, self.rest = self.rest[:size], self.rest[size:]
        return list(struct.unpack(f"<{n}{form}", taken))

    def rows(self, form: str, n: int) -> list[tuple]:
        size = struct.calcsize(f"<{form}")
        taken, self.rest = self.rest[: n * size], self.rest[n * size :]
        return list(struct.iter_unpack(f"<{form}", taken))

    def strings(self, lengths: list[int]) -> list[bytes]:
        out = []
        for length in lengths:
            out.append(self.rest[:length])
            self.rest = self.rest[length:]
        return out


@pytest.mark.parametrize("full", [True, False], ids=["full", "bare"])
@pytest.mark.parametrize("n", [0, 1, 50])
@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.kind)
def test_every_shard_reads_its_part(spec, n, full):
    flush = random_flush(spec, np.random.default_rng(n), n, full=full)
    for part, sent in zip(parts_of(spec, flush), parts_of(spec, flush, gradients=False), strict=True):
        assert (sent.gradients, sent.state_deltas) == (None, None)
        blob = written(spec, flush, sent)
        version, flags, *head = HEAD.unpack(blob[: HEAD.size])
        (
            generation, events, event_time_ms, produced_ms, now_ms, ranges, keys, appends, values, own, forgets,
            sources_size, ids_size, values_size, dim, state_dim, unused,
        ) = head  # fmt: skip
        assert (version, generation, events, event_time_ms, produced_ms, now_ms) == (2, 3, 11, 12, 13, 14)
        assert (ranges, keys, appends, values) == (2, len(part.keys), len(part.append_rows), len(part.value_rows))
        assert (dim, state_dim, unused) == (spec.dim, spec.state_dim, 0)
        r = Reader(blob[HEAD.size :])
        assert r.column("q", 2) == [5, 0]
        assert r.column("q", 2) == [9, 2**62]
        names = r.strings(r.column("H", 2))
        assert names == ["clicks-é:0".encode(), b"a:b:77"]
        assert sources_size == sum(map(len, names))
        assert r.column("Q", keys) == part.keys.tolist()
        assert r.column("q", keys) == part.counts.tolist()
        assert r.column("f", keys) == part.positives.tolist()
        assert r.column("I", keys) == part.checks.tolist()
        ids = r.strings(r.column("H", keys))
        assert ids == part.ids.tolist()
        assert ids_size == sum(map(len, ids))
        assert bool(flags & 1) == (part.gradients is not None)
        assert bool(flags & 2) == (part.mode == "deltas")
        assert bool(flags & 4) == (part.state_deltas is not None)
        if part.gradients is not None:
            assert r.column("f", keys * dim) == part.gradients.reshape(-1).tolist()
        if part.state_deltas is not None:
            assert r.column("f", keys * state_dim) == part.state_deltas.reshape(-1).tolist()
        assert r.column("I", appends) == part.append_rows.tolist()
        assert r.rows("qqQIf", appends) == part.appends.view(ENTRY).reshape(-1).tolist()
        assert r.column("I", values) == part.value_rows.tolist()
        assert r.rows("qqI", values) == part.value_orders.tolist()
        told = r.strings(r.column("I", values))
        assert told == part.values.tolist()
        assert values_size == sum(map(len, told))
        assert bool(flags & 8) == (part.own_events is not None)
        assert not flags & 32
        if part.own_events is not None:
            assert own == len(part.own_events.rows)
            assert r.column("I", own) == part.own_events.rows.tolist()
            assert r.rows("qqI", own) == part.own_events.orders.tolist()
            assert r.column("f", own) == part.own_events.positives.tolist()
        assert forgets == len(part.forget_rows)
        assert r.column("I", forgets) == part.forget_rows.tolist()
        assert r.rows("qqI", forgets) == part.forget_orders.tolist()
        assert bool(flags & 16) == (part.forget_checks is not None)
        if part.forget_checks is not None:
            assert r.column("I", forgets) == part.forget_checks.tolist()
        assert r.rest == b""


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.kind)
def test_places_of_own_events_may_stay_behind(spec):
    flush = random_flush(spec, np.random.default_rng(4), 50, full=True)
    for part, bare in zip(parts_of(spec, flush), parts_of(spec, flush, own=False), strict=True):
        assert bare.own_events is None
        whole, blob = written(spec, flush, part), written(spec, flush, bare)
        assert len(whole) - len(blob) == 28 * len(part.own_events.rows)
        (_, flags, *head), (_, bare_flags, *bare_head) = HEAD.unpack(whole[: HEAD.size]), HEAD.unpack(blob[: HEAD.size])
        assert (flags & 40, bare_flags & 40, flags & ~40) == (8, 32, bare_flags & ~40)
        head[9] = 0  # how many there are
        assert head == bare_head


def test_a_forget_without_place_comes_before_every_event():
    flush = Flush(
        generation=0, ranges=(Range(Source("a", 0), 0, 1),), events=1, event_time_ms=0, produced_ms=0, now_ms=0,
        keys=np.zeros(0, np.uint64), counts=np.zeros(0, np.int64), positives=np.zeros(0, np.float32),
        checks=np.zeros(0, np.uint32), ids=Ragged.empty(), forget=np.array([9], np.uint64),
    )  # fmt: skip
    (part,) = parts_of(DENSE, checked_flush(DENSE, flush), gradients=False)
    blob = written(DENSE, flush, part)
    assert struct.unpack("<IqqI", blob[-24:]) == (0, NO_TIME, 0, 0)


def test_what_no_blob_holds_is_refused_before_anything_is_sent(monkeypatch):
    flush = random_flush(VECTORS, np.random.default_rng(0), 50, full=True)
    parts = parts_of(VECTORS, flush, gradients=False)
    monkeypatch.setattr(flush_blob, "MAX_ROWS", 5)
    with pytest.raises(BadRequest, match=r"table 'item': \d+ keys of one shard in one call; at most 5"):
        FlushBlob(VECTORS, flush, parts[0])
    monkeypatch.undo()
    monkeypatch.setattr(flush_blob, "MAX_BYTES", 500)
    with pytest.raises(BadRequest, match=r"table 'item': \d+ bytes for one shard in one call; at most 500, make"):
        FlushBlob(VECTORS, flush, parts[0])
    monkeypatch.undo()
    long = Flush(
        **{name: getattr(flush, name) for name in flush.__slots__} | {"ranges": (Range(Source("x" * 599, 0), 0, 1),)}
    )
    with pytest.raises(BadRequest, match="name of a source has 601 bytes; at most 600"):
        FlushBlob(VECTORS, long, parts[0])
