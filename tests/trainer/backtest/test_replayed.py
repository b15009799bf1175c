"""A back-test is a worker's run: repeatable, all positives measured, warm-up left out, frozen copy behind."""

import json
from dataclasses import replace

import numpy as np
import pytest

from embedding_store.model import ModelSettings
from infra.presets import PRESETS
from ingest.settings import IngestSettings
from tests.streams import LAWS, make
from trainer.backtest.command import Columns, run
from trainer.backtest.errors import DataUnusable
from trainer.backtest.replayed import replay
from trainer.backtest.report import figures, over_time, report
from trainer.backtest.stream import Stream
from trainer.settings import TrainerSettings

MODEL = ModelSettings(dim=16, history_length=10, shards=1)
TRAINER = TrainerSettings.model_validate({"passes": 2, "replay": 2})
INGEST = IngestSettings(batch_events=64)


def small(events=1500, **changes):
    made = make(replace(LAWS["small catalogue"], events=events, users=200, **changes), seed=1)
    n = len(made.users)
    return Stream(made.users.tolist(), made.items.tolist(), 1_600_000_000_000 + np.arange(n), np.ones(n, bool))


@pytest.fixture(scope="module")
def done():
    return replay(small(), MODEL, TRAINER, INGEST)


def test_every_positive_after_the_warm_up_is_a_test(done):
    assert done.place.tolist() == list(range(300, 1500))
    assert (done.dead_letters, done.quarantined, done.warmup) == (0, 0, 300)
    assert done.frozen is not None
    assert len(done.ranks) == len(done.popular) == len(done.frozen) == len(done.warm) == 1200


def test_a_run_can_be_repeated(done):
    again = replay(small(), MODEL, TRAINER, INGEST)
    assert (again.ranks == done.ranks).all()


def test_the_report_says_what_was_measured_and_is_json(done):
    document = json.loads(json.dumps(report(done)))
    hits = done.ranks <= 10
    assert document["hr10"] == pytest.approx(hits.mean(), abs=1e-5)
    assert document["hr10_late"] == pytest.approx(hits[450:].mean(), abs=1e-5)
    assert document["tests"] == document["warm"]["tests"] + document["cold"]["tests"] == 1200
    assert document["hr10"] > document["popularity"]["hr10"]
    assert document["frozen"]["hr10_late"] < document["hr10_late"]
    curve = over_time(done)
    assert curve[-1]["event"] == 1499
    assert np.mean([p["model"] for p in curve]) == pytest.approx(hits.mean(), abs=1e-4)


def test_figures_of_nothing():
    none = {"hr10": None, "hr10_late": None, "ndcg10": None, "mrr": None}
    assert figures(np.zeros(0), np.zeros(0, bool)) == none
    early = figures(np.array([1.0, 11.0]), np.zeros(2, bool))
    assert (early["hr10"], early["hr10_late"]) == (0.5, None)


def test_nothing_to_replay_is_said():
    with pytest.raises(DataUnusable, match="no event is left"):
        replay(Stream([], [], np.zeros(0, np.int64), np.zeros(0, bool)), MODEL, TRAINER, INGEST)


def test_the_command_reads_replays_and_ends_with_json(tmp_path, capsys):
    stream = small(600)
    path = tmp_path / "clicks.csv"
    rows = zip(stream.users, stream.items, stream.time_ms.tolist(), strict=True)
    path.write_text("who,what,when\n" + "".join(f"{u},{i},{t}\n" for u, i, t in rows))
    columns = Columns("who", "what", "when", None, "label > 0", "auto", None, None)
    run(str(path), columns, MODEL, TRAINER, INGEST, warmup=0.5, first_only=True, negatives=False, frozen=False,
        picture=None, as_json=True)  # fmt: skip
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (document["events"], document["tests"], document["warmup_events"]) == (600, 300, 300)
    assert "frozen" not in document


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_is_usable(preset):
    values = {"model": {}, "trainer": {}, "ingest": {}} | PRESETS[preset]
    ModelSettings.model_validate(values["model"])
    TrainerSettings.model_validate(values["trainer"])
    IngestSettings.model_validate(values["ingest"])
