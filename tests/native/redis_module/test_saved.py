"""Saves of every kind of table, whole and damaged, under the sanitizers and without; see saves.c."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest

from native.redis_module.compiler import CORE, build
from tests.native.redis_module.blobs import PLACE_NONE, Blob
from tests.native.redis_module.loaded import HERE
from tests.native.redis_module.parsers import PAIRS

SOURCES = [*CORE, HERE / "counting.c", HERE / "saves.c"]
SANITIZED = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g", "-O1")


@pytest.fixture(scope="module")
def programs(tmp_path_factory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("saves")
    plain = build(folder / "plain", SOURCES, f"-I{HERE}")
    return plain, build(folder / "sanitized", SOURCES, f"-I{HERE}", *SANITIZED)


def calls(kind: str, dim: int, state_dim: int, keys: int, steps: int, seed: int, length: int = 0) -> list[bytes]:
    """Random calls: own events with ids, gradients or appends or values, forgets."""
    rng = np.random.default_rng(seed)
    out = []
    for step in range(steps):
        chosen = rng.choice(4 * keys, keys, replace=False)
        counts = rng.integers(0, 3, keys)
        blob = Blob(
            ranges=[(b"t:0", 100 * step, 100 * step + 100), *([(b"another:7", 5, 6)] if step == 0 else [])],
            keys=[int(k) * 2654435761 % 2**64 for k in chosen], counts=counts.tolist(),
            positives=(counts / 2).tolist(), checks=[int(k) for k in chosen],
            ids=[b"id-%d" % k * int(k % 5) for k in chosen],
            events=3 * keys, dim=dim, state_dim=state_dim, now_ms=1000 * step, event_time_ms=50 * step,
            forgets=[(int(row), (int(rng.integers(0, 10**6)), 5, 1) if rng.random() < 0.7 else (PLACE_NONE, 0, 0))
                     for row in rng.choice(keys, keys // 10, replace=False)],
        )  # fmt: skip
        if dim:
            blob.gradients = rng.standard_normal((keys, dim)).astype(np.float32)
        rows = rng.integers(0, keys, keys)
        places = [(int(t), int(p), int(q)) for t, p, q in rng.integers(0, 10**6, (keys, 3))]
        if kind == "sequence":
            blob.appends = [
                (int(r), (t, p, int(rng.integers(2**40)), q, 1.0)) for r, (t, p, q) in zip(rows, places, strict=True)
            ]
        if kind == "record":
            blob.values = [
                (int(r), place, rng.bytes(int(rng.integers(0, length + 1))))
                for r, place in zip(rows, places, strict=True)
            ]
        out.append(blob.bytes())
    return out


def described(pairs: dict[str, str], blobs: list[bytes]) -> bytes:
    def string(data: bytes) -> bytes:
        return struct.pack("<I", len(data)) + data

    words = [string(word.encode()) for pair in pairs.items() for word in pair]
    return b"".join([struct.pack("<I", len(pairs)), *words, struct.pack("<I", len(blobs)), *map(string, blobs)])


LIMITS = {
    "ttl_ms": "2500", "max_rows": "60", "remember_events": "2000", "max_evicted": "20", "max_forgotten": "10"
}  # fmt: skip
TABLES = {
    "sgd": ({"dim": "5"}, 0),
    "adam with decay": ({"dim": "3", "optimizer": "adam", "l2": "0.01", "l1": "0.001", "step_events": "7"}, 7),
    "limited and admitting": ({"dim": "3", "optimizer": "adagrad", "admit_after": "3", "max_stubs": "30"} | LIMITS, 3),
    "dense": ({"kind": "dense", "dim": "4", "optimizer": "add"}, 0),
    "sequence": ({"kind": "sequence", "dim": "0", "length": "4", "optimizer": "add"} | LIMITS, 0),
    "record": ({"kind": "record", "dim": "0", "length": "30", "optimizer": "add"}, 0),
}


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize(("keys", "steps", "flips"), [(0, 0, 0), (8, 3, 0), (90, 12, 150)])
def test_every_table(programs, name, keys, steps, flips):
    changed, state_dim = TABLES[name]
    pairs = PAIRS | changed
    blobs = calls(pairs["kind"], int(pairs["dim"]), state_dim, keys, steps, 3, int(pairs["length"]))
    run(programs, described(pairs, blobs), flips)


def test_several_blocks(programs):
    pairs = PAIRS | {"dim": "64"}
    assert "blocks" in (out := run(programs, described(pairs, calls("embedding", 64, 0, 1500, 2, 9)), 12))
    assert int(out.split()[0]) >= 3


def run(programs: tuple[Path, Path], stdin: bytes, flips: int) -> str:
    ends = [
        subprocess.run([program, "5", str(flips)], input=stdin, capture_output=True, check=False, timeout=120)
        for program in programs
    ]
    for end in ends:
        assert (end.returncode, end.stderr.decode()) == (0, "")
    assert ends[0].stdout == ends[1].stdout
    return ends[0].stdout.decode()
