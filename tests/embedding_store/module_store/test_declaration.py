"""What the module is told of a table."""

import re
from pathlib import Path

import pytest

import native.redis_module
from embedding_store import eviction
from embedding_store.declarations import to_json
from embedding_store.module_store.declaration import declaration
from embedding_store.regularization import L1, L2, ElasticNet
from embedding_store.schedules import Cosine, InverseTime
from embedding_store.spec import Adagrad, Adam, Add, RowwiseAdagrad, Sgd, TableSpec


def pairs(spec: TableSpec) -> dict[str, str]:
    words = declaration(spec, b"{}")
    assert len(set(words[::2])) == len(words) / 2
    return {str(name): str(value) for name, value in zip(words[::2], words[1::2], strict=True)}


SPECS = [
    TableSpec(name="a", dim=3, optimizer=Sgd(), regularization=L2(l2=0.25), schedule=InverseTime(decay=1 / 3)),
    TableSpec(name="b", dim=3, optimizer=Adam(), schedule=Cosine(steps=9, warmup_steps=4), clip_norm=1e-7),
    TableSpec(name="c", dim=3, optimizer=RowwiseAdagrad(epsilon=1e-30), regularization=ElasticNet(l1=0.1, l2=0.2)),
    TableSpec(name="d", dim=3, optimizer=Adagrad(), regularization=L1(l1=0.1), admit_after=3, seed=2**63 - 1),
    TableSpec(name="e", kind="sequence", length=7, ttl_s=0.25, max_rows=1001),
    TableSpec(name="f", kind="record", length=7, ttl_s=1e-9),
    TableSpec(name="g", kind="dense", dim=64, optimizer=Add()),
]


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_every_name_that_the_module_knows_once(spec):
    source = (Path(native.redis_module.__file__).parent / "core" / "spec.c").read_text()
    known = re.findall(r'{"(\w+)", \w+, AT\(', source)
    assert sorted(pairs(spec)) == sorted(known)
    assert pairs(spec)["kind"] == spec.kind


def test_limits_are_of_a_shard_and_numbers_read_back(monkeypatch):
    monkeypatch.setattr(eviction, "BATCH", 5)
    told = pairs(TableSpec(name="t", dim=2, shards=4, max_rows=1001, ttl_s=0.25, max_stubs=10, initial_std=0.1 + 0.2))
    assert (told["max_rows"], told["max_stubs"], told["ttl_ms"], told["evict_batch"]) == ("250", "2", "250", "5")
    assert float(told["initial_std"]) == 0.1 + 0.2
    assert pairs(SPECS[5])["ttl_ms"] == "1"
    assert pairs(SPECS[6])["ttl_ms"] == "0"
    assert (pairs(SPECS[0])["decay"], pairs(SPECS[0])["l2"], pairs(SPECS[0])["l1"]) == (repr(1 / 3), "0.25", "0.0")
    assert (pairs(SPECS[1])["steps"], pairs(SPECS[1])["beta_1"], pairs(SPECS[1])["clip_norm"]) == ("9", "0.9", "1e-07")


def test_the_document_is_what_is_registered():
    document = to_json(SPECS[0])
    assert declaration(SPECS[0], document)[:2] == ["declaration", document]
