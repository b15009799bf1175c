"""A few faults on real processes lose and double nothing: every kind on the module, with both clients of Kafka, some
on stock Redis with eviction.

`make chaos` does many more.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.servers

TIMEOUT_S = 400


@pytest.mark.parametrize(
    ("faults", "backend", "eviction", "client"),
    [(12, "module", "off", "kafka-python"), (6, "stock", "on", "kafka-python"), (12, "module", "off", "librdkafka")],
)
def test_faults_lose_and_double_nothing(tmp_path: Path, faults: int, backend: str, eviction: str, client: str) -> None:
    environ = {key: value for key, value in os.environ.items() if not key.startswith("TOWLINE_")}
    given = ["--faults", str(faults), "--seed", "3", "--eviction", eviction, "--backend", backend]
    given += ["--client", client, "--folder", str(tmp_path / "chaos")]
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.chaos", *given],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        said, complained = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.terminate()  # not killed: it has processes of its own to stop
        process.wait(TIMEOUT_S)
    assert process.returncode == 0, said + complained
    result = json.loads(said.splitlines()[-1])
    assert result["faults"] == faults
    assert result["not_done"] == 0
    assert result["events"] > 1000
    assert (result["lost"], result["duplicated"]) == (0, 0)
    assert result["sequences_equal"]
    assert result["weights_equal"]
    assert result["records_equal"]
    assert (result["rows_evicted_or_expired"] > 0) == (eviction == "on")
