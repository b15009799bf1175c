"""What TensorBoard is told is what was measured, and nothing that was not."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tensorflow as tf

from embedding_store.memory import MemoryStore
from ingest.columns import Partition
from ingest.listed import ListedSource
from ingest.settings import IngestSettings
from tests.trainer.small import MODEL, TOPIC, Click, record
from trainer.metrics import Metrics
from trainer.scores import Score
from trainer.settings import TrainerSettings
from trainer.tensorboard import TensorBoard, figures
from trainer.worker import Worker


def test_scalars_are_those_of_the_prequential_test(tmp_path):
    rng = np.random.default_rng(0)
    log = [record(Click(1_700_000_000_000 + i, 0, i << 16, int(rng.integers(0, 9)), 50 + int(rng.integers(0, 20))))
           for i in range(300)]  # fmt: skip
    source = ListedSource({Partition(TOPIC, 0): log}, IngestSettings(batch_events=30))
    settings = TrainerSettings.model_validate({"passes": 1, "update_events": 0, "group": 32, "evaluate_share": 1.0})
    worker = Worker(
        MemoryStore(), source, MODEL, settings, Metrics(TensorBoard(str(tmp_path), "worker-0", every_s=0.0))
    )
    worker.run(lambda: source.exhausted)
    (file,) = (tmp_path / "worker-0").iterdir()
    written: dict[str, dict[int, float]] = {}
    for event in tf.compat.v1.train.summary_iterator(str(file)):
        for value in event.summary.value:
            written.setdefault(value.tag, {})[event.step] = float(tf.make_ndarray(value.tensor))
    expected = figures(worker._prequential)
    assert {"hr10/model/recent", "ndcg10/warm/faded", "mrr/cold/recent", "hr10/popularity/faded"} <= expected.keys()
    for name, value in expected.items():
        assert written[name][300] == pytest.approx(value, rel=1e-5)
    assert len(written["loss"]) == 10
    assert all(math.isfinite(v) for by_step in written.values() for v in by_step.values())
    assert not any(name.startswith("labels") for name in written), "there are none"


def test_figures_are_windowed_and_faded_however_tests_are_cut():
    ranks = np.random.default_rng(1).integers(1, 30, 500).astype(float)
    ranks[::11] = np.inf
    gains, weights = np.where(ranks <= 10, 1 / np.log2(1 + ranks), 0), np.exp(-np.arange(499, -1, -1) / 200)
    for cuts in ([], [3, 50, 51, 300]):
        score = Score(10, 200)
        for part in np.split(ranks, cuts):
            score.add(part)
        recent = [(ranks <= 10)[-200:].mean(), gains[-200:].mean(), (1 / ranks)[-200:].mean()]
        assert score.recent_figures() == pytest.approx(recent)
        faded = [(weights * v).sum() / weights.sum() for v in (ranks <= 10, gains, 1 / ranks)]
        assert score.faded_figures() == pytest.approx(faded)
    assert all(math.isnan(v) for v in Score(10, 5).recent_figures())
