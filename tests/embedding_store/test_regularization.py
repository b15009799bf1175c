"""The published matrix: every cell that is there can be declared, every other is refused with both values and why."""

import itertools
import re
from pathlib import Path

import pytest
from pydantic import ValidationError

from embedding_store.declarations import from_json, to_json
from embedding_store.model import ModelSettings
from embedding_store.regularization import L1, L2, ElasticNet, NoRegularization
from embedding_store.schedules import Constant, Cosine, InverseTime
from embedding_store.spec import Adagrad, Adam, Add, RowwiseAdagrad, Sgd, TableSpec

LEARNERS = [Sgd(), Adagrad(), RowwiseAdagrad(), Adam()]
REGULARIZERS = [NoRegularization(), L2(l2=0.1), L1(l1=0.1), ElasticNet(l1=0.1, l2=0.1)]
COUPLED = [L2(l2=0.1, coupled=True), ElasticNet(l1=0.1, l2=0.1, coupled=True)]
SCHEDULES = [Constant(), Constant(warmup_steps=9), InverseTime(decay=0.1), Cosine(steps=9)]


def spec(**values):
    return TableSpec(name="t", dim=2, **values)


@pytest.mark.parametrize(
    ("optimizer", "regularization", "schedule"), list(itertools.product(LEARNERS, REGULARIZERS, SCHEDULES))
)
def test_the_cells_that_are_there(optimizer, regularization, schedule):
    declared = spec(optimizer=optimizer, regularization=regularization, schedule=schedule, clip_norm=1.0)
    assert from_json(to_json(declared), "t") == declared
    model = ModelSettings(optimizer=optimizer, regularization=regularization, schedule=schedule, clip_norm=2.0)
    assert ModelSettings.from_document(model.document()) == model
    made = model.tables()["item"]
    assert (made.optimizer, made.regularization, made.schedule) == (optimizer, regularization, schedule)
    assert (made.clip_norm, made.step_events) == (2.0, 1000)


def test_a_declaration_of_an_earlier_release_is_one_without_regularization():
    stored = from_json(b'{"name": "t", "dim": 2, "optimizer": {"kind": "sgd"}}', "t")
    assert (stored.regularization, stored.schedule, stored.clip_norm) == (NoRegularization(), Constant(), 0.0)


@pytest.mark.parametrize("regularization", COUPLED, ids=lambda r: r.kind)
def test_coupled_l2_is_for_sgd_alone(regularization):
    assert spec(optimizer=Sgd(), regularization=regularization).regularization.coupled
    for optimizer in LEARNERS[1:]:
        message = f"optimizer '{optimizer.kind}' with coupled regularization '{regularization.kind}': .*no closed form"
        with pytest.raises(ValidationError, match=message):
            spec(optimizer=optimizer, regularization=regularization)
        with pytest.raises(ValidationError, match=message):
            ModelSettings(optimizer=optimizer, regularization=regularization)


@pytest.mark.parametrize("regularization", REGULARIZERS[1:], ids=lambda r: r.kind)
def test_add_has_nothing_to_decay_with(regularization):
    with pytest.raises(ValidationError, match=f"'add' with regularization '{regularization.kind}': .*no learning rate"):
        spec(optimizer=Add(), regularization=regularization)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"schedule": InverseTime(decay=1.0)}, "'add' with schedule 'inverse_time'"),
        ({"schedule": Constant(warmup_steps=3)}, r"schedule 'constant' \(warmup_steps 3\)"),
        ({"clip_norm": 1.0}, "'add' with clip_norm 1.0: deltas of several calls"),
        ({"step_events": 0}, "step_events"),
        ({"step_events": -5}, "step_events"),
        ({"clip_norm": -1.0}, "clip_norm"),
        ({"clip_norm": float("nan")}, "clip_norm"),
        ({"regularization": {"kind": "l2", "l2": -0.1}}, "l2"),
        ({"regularization": {"kind": "l1", "l1": float("inf")}}, "l1"),
        ({"regularization": {"kind": "group_lasso"}}, "group_lasso"),
        ({"optimizer": {"kind": "adam", "beta_1": 1.0}}, "beta_1"),
    ],
)
def test_what_can_not_be_declared(values, message):
    with pytest.raises(ValidationError, match=message):
        spec(**values)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: f"{s.kind}-{s.warmup_steps}")
def test_one_step_never_turns_a_weight_around(schedule):
    """0 ≤ η·λ2 < 1 at every step: the largest rate of any schedule is the optimizer's own."""
    with pytest.raises(ValidationError, match=re.escape("learning_rate 2.0 times l2 0.5 of regularization 'l2' is 1")):
        spec(optimizer=Sgd(learning_rate=2.0), regularization=L2(l2=0.5), schedule=schedule)
    spec(optimizer=Sgd(learning_rate=2.0), regularization=L2(l2=0.4999), schedule=schedule)


def test_sequences_learn_nothing():
    with pytest.raises(ValidationError, match="sequence table 'h' has no vectors to learn: leave regularization"):
        TableSpec(name="h", kind="sequence", length=3, regularization=L2(l2=0.1))


def test_the_matrix_that_is_published_is_the_one_that_is_checked():
    text = (Path(__file__).parents[2] / "docs" / "LEARNING.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| `")]
    matrix = {row[0].strip("`"): row[1:7] for row in rows if row[1] == "✓"}
    assert list(matrix) == ["sgd", "adagrad", "rowwise_adagrad", "adam", "add"]
    for optimizer in (*LEARNERS, Add()):
        for regularization, cell in zip((*REGULARIZERS, *COUPLED), matrix[optimizer.kind], strict=True):
            try:
                spec(optimizer=optimizer, regularization=regularization)
            except ValidationError:
                assert cell.startswith("refused"), (optimizer.kind, regularization)
            else:
                assert cell.startswith("✓"), (optimizer.kind, regularization)
