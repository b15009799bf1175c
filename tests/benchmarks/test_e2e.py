"""The benchmark of the whole product runs, and loses nothing on the way; its figures are for people."""

import json
import subprocess
import sys

import msgspec
import numpy as np
import pytest

from benchmarks.e2e.presets import PRESETS
from benchmarks.e2e.stream import FIRST_ID, WIDTH, Stream
from infra.config import TowlineConfig


def test_the_stream_is_what_its_records_say():
    stream = Stream.drawn(1000, users=50, items=20)
    times = 1_700_000_000_000 + np.arange(1000)
    told = [[], []]
    for partition, value in stream.records(times, 2, 7):
        events = [msgspec.json.decode(line) for line in value.split(b"\n")]
        assert len(events) <= 7
        assert all(event["user_id"] % 2 == partition for event in events)
        told[partition] += [(e["timestamp"], e["user_id"], e["item_id"]) for e in events]
    assert all(one == sorted(one) for one in told)
    expected = zip(times.tolist(), stream.user.tolist(), stream.item.tolist(), strict=True)
    assert sorted(told[0] + told[1]) == list(expected)
    assert stream.user.min() >= FIRST_ID
    assert stream.lines(times).shape == (1000, WIDTH)


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_configurations(name):
    config = TowlineConfig.model_validate(PRESETS[name].config(512))
    assert config.ingest.batch_events == 512
    assert not config.trainer.deltas


@pytest.mark.servers
def test_a_small_run_learns_all_and_prints_one_object():
    sizes = "--presets no_dense --events 20000 --users 500 --items 200 --batch-events 64 --rate 2000 --live-seconds 4"
    command = [sys.executable, "-m", "benchmarks.e2e", *sizes.split()]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["learned"] == {"no_dense": 20000}
    assert set(told["by_process"]["no_dense"]) == {"store", "broker", "trainer"}
    assert {"no_dense"} == set(told["cpu_us_per_event"]) == set(told["events_per_s"])
    assert told["live"]["probes"] > 0
    assert {"live_events_per_s", "freshness_p50_ms", "freshness_p99_ms", "cpu", "cores"} <= set(told)
