"""`towline demo`, as a newcomer runs it: the whole replay, its last line, and nothing left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.servers


def test_the_replay_learns_and_leaves_nothing(tmp_path: Path) -> None:
    environ = {key: value for key, value in os.environ.items() if not key.startswith("TOWLINE_")}
    environ |= {"TMPDIR": str(tmp_path), "TOWLINE_SERVING__PORT": "0", "TOWLINE_LOCAL__BROKER": "kafka"}
    command = [sys.executable, "-m", "infra", "demo", "--once", "--rate", "0"]
    answer = subprocess.run(
        command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=400, check=False
    )
    assert answer.returncode == 0, answer.stderr
    result = json.loads(answer.stdout.splitlines()[-1])
    assert set(result) == {
        "events",
        "dead_letters",
        "events_per_s",
        "hr10",
        "hr10_popularity",
        "freshness_p50_ms",
        "freshness_p99_ms",
        "broker",
        "store",
    }
    assert result["events"] == 100_000
    assert result["dead_letters"] == 0
    assert result["hr10"] >= 1.2 * result["hr10_popularity"] > 0
    assert result["broker"].startswith("Apache Kafka")
    assert not list(tmp_path.glob("towline-demo-*"))
    assert not (tmp_path / ".towline").exists()
    assert not _mentioning(str(tmp_path)), "processes of the demo that outlive it"


def _mentioning(text: str) -> list[str]:
    """Running processes with `text` in their command line or environment."""
    listing = subprocess.run(["ps", "axeww"], capture_output=True, text=True, check=True, timeout=30).stdout
    return [line for line in listing.splitlines() if text in line]
