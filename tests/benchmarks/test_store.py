"""The benchmark runs, and its last line is one JSON object; its figures are for people."""

import json
import subprocess
import sys

import pytest


@pytest.mark.servers
def test_a_small_run_prints_one_object_and_loses_nothing():
    sizes = "--rows 8192 --dim 8 --keys 64 --shards 2 --rounds 2 --blocks 1 --seconds 0 --growths 1"
    command = [sys.executable, "-m", "benchmarks.store", *sizes.split()]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["lost"] == 0
    assert {
        "lookup_apply_over_floor",
        "lookup_apply_over_floor_on_huge_pages",
        "stock_over_module_server_cpu",
        "bytes_over_payload",
        "growth_worst_call_ms",
        "wire_bytes_over_tfra",
        "module_rows_per_s_one_writer",
        "stock_rows_per_s_two_writers",
        "aggregation_over_copy",
    } <= set(told)
    assert told["of_shards"]["client_us_of_a_shard"] > 0
    assert set(told["optimizers"]) == {"sgd", "adagrad", "adam"}
