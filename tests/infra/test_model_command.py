"""`towline model`: versions are listed and gone back to, on a real server."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from embedding_store.dense_versions import DenseVersions, read_dense
from embedding_store.model import ModelSettings
from embedding_store.open import open_store
from embedding_store.settings import RedisSettings
from embedding_store.towers import DenseParameters
from tests.flushes import begin, flush_of
from tests.infra.test_cli import towline
from tests.servers import running, server_names

pytestmark = pytest.mark.servers


def test_list_and_rollback(tmp_path: Path) -> None:
    model = ModelSettings(dim=8, dense_layers=(8,))
    keys = DenseParameters(model).keys
    shape = "history_length = 20\nsuccessors = 0\n"  # those of settings without a preset
    (tmp_path / "towline.toml").write_text(f"[model]\ndim = 8\ndense_layers = [8]\n{shape}")
    folder = tmp_path / "redis"
    folder.mkdir()
    with running(server_names()[0], folder) as server:
        environ = {"TOWLINE_REDIS__URL": server.url, "PYTHONPATH": str(Path(__file__).parents[2])}
        store = open_store(RedisSettings(url=server.url))
        spec = begin(store, model.tables()["dense"])
        versions = DenseVersions(store, keys)
        for at in range(2):
            rows = np.full((len(keys), spec.dim), 0.3 + at, np.float32)
            store.apply("dense", flush_of(keys.tolist(), at, at + 1, gradients=rows, event_time_ms=1_700_000_000_000))
            versions.keep(0)
        listed = towline(tmp_path, "model", "list", **environ)
        assert [line.split("\t")[:3] for line in listed.stdout.splitlines()] == [
            ["2", "2", "2023-11-14 22:13:20+00:00"],
            ["1", "1", "2023-11-14 22:13:20+00:00"],
        ], listed.stderr
        answer = towline(tmp_path, "model", "rollback", "1", **environ)
        assert answer.returncode == 0, answer.stderr
        assert (read_dense(store, keys)[1] == np.float32(0.3)).all()
        assert store.generation() >= 2
        wrong = towline(tmp_path, "model", "rollback", "7", **environ)
        assert wrong.returncode == 1
        assert "version 7" in wrong.stderr
        assert "there are: 2, 1" in wrong.stderr
        store.close()


def test_a_model_without_dense_layers_has_no_versions(tmp_path: Path) -> None:
    environ = {
        "TOWLINE_REDIS__URL": "redis://127.0.0.1:1",
        "TOWLINE_MODEL__LEARNED_GATES": "false",
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    answer = towline(tmp_path, "model", "list", **environ)
    assert answer.returncode == 1
    assert "no dense_layers" in answer.stderr
