"""The benchmark runs, and its last line is one JSON object; its figures are for people."""

import json
import subprocess
import sys

import pytest


@pytest.mark.servers
def test_a_small_run_prints_one_object_and_fails_no_request():
    sizes = "--items 2000 --many-items 3000 --users 100 --seconds 1 --rounds 1"
    command = [sys.executable, "-m", "benchmarks.serving", *sizes.split()]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert {
        "lookup_over_hello",
        "raw_batch_per_core_s",
        "recommend_100k_per_core_s",
        "recommend_100k_p99_ms",
        "recommend_1m_exact_p99_ms",
        "update_visible_p99_ms",
        "stale_recovery_s",
    } <= set(told)
    failed = {name: told[name] for name in told if "failed" in name or name == "outage_undefined"}
    assert set(failed.values()) == {0}, failed
    assert told["outage_answered"] > 0
    assert told["answered_on_sigterm"] > 0


@pytest.mark.servers
def test_a_small_run_of_starts_prints_one_object_and_fails_no_request():
    sizes = "--items 2000 --users 100 --seconds 1"
    command = [sys.executable, "-m", "benchmarks.serving.starts", *sizes.split()]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert {"cold_ready_s_1w", "warm_load_s_2w", "memory_mb_2w", "recommend_per_s_2w"} <= set(told)
    assert told["warm_load_s_1w"] is not None, "it began from its file"
    assert told["failed_1w"] == told["failed_2w"] == 0
