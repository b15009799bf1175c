"""Our side of the benchmark beside TFRA learns what it is given; the peer itself is installed only to be measured."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import benchmarks.trainer
from benchmarks.store.servers import store_server
from benchmarks.trainer.data import Ids
from infra.local.store_server import find_store_program


@pytest.mark.servers
@pytest.mark.parametrize("group", [64, 256])
def test_ours_learns_all_and_is_tested_on_the_way(tmp_path, group):
    Ids.drawn(256 * 8, users=40, items=30, tastes=2).save(tmp_path / "ids.npz")
    with store_server(find_store_program("auto", os.environ), tmp_path / "store", module=True, aof=False) as served:
        sizes = f"--batch 256 --steps 6 --warm-up 2 --group {group} --evaluate 1"
        command = [sys.executable, "-m", "benchmarks.trainer.ours", str(tmp_path / "ids.npz"), "--store", served.url]
        done = subprocess.run([*command, *sizes.split()], check=False, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert len(told["seconds_each"]) == 6
    assert told["tests"] > 0
    assert 0 <= told["hr10"] <= 1


def test_ids_are_kept_and_users_have_tastes(tmp_path):
    ids = Ids.drawn(5000, users=10, items=100, tastes=3)
    ids.save(tmp_path / "ids.npz")
    again = Ids.load(tmp_path / "ids.npz")
    assert np.array_equal(again.user, ids.user)
    assert np.array_equal(again.item, ids.item)
    assert len(ids.record(3, 6).split(b"\n")) == 3
    favourites = {int(np.bincount(ids.item[ids.user == user], minlength=100).argmax()) for user in range(10)}
    assert len(favourites) > 1


def test_the_peer_imports_nothing_of_ours():
    tree = ast.parse((Path(benchmarks.trainer.__file__).parent / "peer.py").read_text())
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    ours = {"benchmarks", "trainer", "ingest", "native", "infra", "serving", "embedding_store"}
    assert not {name.split(".")[0] for name in names} & ours
