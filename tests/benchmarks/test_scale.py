"""The benchmark of growth runs, learns every event once, and draws its picture."""

import json
import subprocess
import sys

import pytest


@pytest.mark.servers
def test_a_small_run_prints_one_object_and_a_picture(tmp_path):
    sizes = "--rows 2000 6000 --batches 500 --batch-rows 2000 --rounds 1 --events 20000 --cells 1/1 --cell-events 40000"
    command = [sys.executable, "-m", "benchmarks.scale", *sizes.split(), "--plots", str(tmp_path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert [point["users"] for point in told["rows"]] == [2000, 6000]
    assert [point["batch_events"] for point in told["batches"]] == [500]
    assert all(point["cpu_us"] > 0 for point in told["rows"])
    assert set(told["cells"][0]["by_process"]) == {"store", "broker", "trainer"}
    assert (tmp_path / "scale.png").read_bytes().startswith(b"\x89PNG")
