"""Binary cross-entropy: its gradients by TensorFlow, what it learns, and the figures of label events."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
from pydantic import ValidationError

from embedding_store.model import ModelSettings
from infra.config import TowlineConfig
from ingest.settings import IngestSettings
from tests.streams import LAWS, make
from tests.trainer.test_learner import MODELS, SCALED, learner_of
from trainer.backtest.replayed import replay
from trainer.backtest.report import report
from trainer.backtest.stream import Stream
from trainer.binary_step import BinaryStep
from trainer.label_scores import LabelScore, LabelTests, auc, log_losses
from trainer.layered_step import finished, forward
from trainer.settings import TrainerSettings

MORE = {
    **SCALED,
    "cosine, dense": ModelSettings(dim=6, history_length=4, dense_layers=(7, 3), similarity="cosine", temperature=0.5),
}
BCE = {"loss": "bce", "replay": 0, "label_smoothing": 0.0}


@pytest.mark.parametrize("name", ["history", "no prior", "dense", *MORE])
def test_gradients_are_those_of_tensorflow(name):
    model, rng, n = {**MODELS, **MORE}[name], np.random.default_rng(0), 40
    _, dense = learner_of(model, 16)
    users, items = (rng.normal(size=(n, model.dim)).astype(np.float32) for _ in range(2))
    prior, popularity = (rng.normal(size=n).astype(np.float32) for _ in range(2))
    label, weight = (rng.random(n) < 0.3).astype(np.float32), rng.uniform(0, 2, n).astype(np.float32)
    weight[::7] = 0
    step = BinaryStep(model, dense)
    step.intercept = -0.4
    found = step(users, items, prior, popularity, label, weight, fit=False)
    inputs = [tf.constant(a) for a in (users, items, prior)] + [dense.variable + 0.0]
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        user_layers, item_layers = dense.towers(inputs[3])
        u = finished(forward(user_layers, inputs[0]), model) / model.temperature
        v = finished(forward(item_layers, inputs[1]), model)
        logits = tf.reduce_sum(u * v, axis=1) + inputs[2] * popularity - 0.4
        losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=label, logits=logits)
        loss = tf.reduce_sum(losses * weight)
    expected = tape.gradient(loss, inputs, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    assert found.loss == pytest.approx(float(loss), rel=1e-5)
    got = [found.users, found.items, found.prior]
    if model.dense_layers:
        got.append(found.dense)
        assert np.abs(found.dense).max() > 0.01
    for one, two in zip(got, expected, strict=False):
        np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-5)
    assert step.intercept == -0.4


def test_the_intercept_makes_what_is_predicted_the_share_that_is_observed():
    model, rng, n = MODELS["history"], np.random.default_rng(0), 4000
    step = BinaryStep(model, learner_of(model, 16)[1])
    zeros, label = np.zeros((n, model.dim), np.float32), (rng.random(n) < 0.03).astype(np.float32)
    ones = np.ones(n, np.float32)
    step(zeros, zeros, ones, ones, label, ones, fit=True)
    assert step.intercept is not None
    assert 1 / (1 + math.exp(-(step.intercept + 1.0))) == pytest.approx(label.mean(), rel=0.01)


def labelled(events=6000, flip=None):
    """Events of a made-up stream, each with an item its user would not have taken as a negative."""
    law = replace(LAWS["small catalogue"], events=events // 2, users=400)
    made, rng = make(law, seed=2), np.random.default_rng(3)
    users, items, positive = [], [], []
    for user, item in zip(made.users.tolist(), made.items.tolist(), strict=True):
        users += [user, user]
        items += [item, int(rng.integers(0, law.items))]
        positive += [True, False]
    positive = np.array(positive)
    if flip is not None:
        positive[flip] = ~positive[flip]
    return Stream(users, items, 1_600_000_000_000 + np.arange(len(users)), positive)


@pytest.fixture(scope="module", params=[{}, {"similarity": "cosine", "temperature": 0.2}], ids=["dot", "cosine"])
def done(request):
    model = ModelSettings(dim=16, history_length=10, shards=1, **request.param)
    return replay(
        labelled(), model, TrainerSettings.model_validate({"passes": 5, **BCE}), IngestSettings(batch_events=64)
    )


def test_labels_are_learned_and_the_predictions_are_calibrated(done):
    found = report(done)["labels"]
    assert found["tests"] == 4800
    assert found["positive_share"] == pytest.approx(0.5, abs=0.01)
    assert found["auc"] > 0.68
    assert found["log_loss"] < math.log(2)
    assert found["calibration"] == pytest.approx(1.0, abs=0.05)
    assert done.quarantined == 0


def test_flipped_labels_are_quarantined():
    model = ModelSettings(dim=16, history_length=10, shards=1)
    trainer = TrainerSettings.model_validate({"passes": 5, "guard_after": 1000, **BCE})
    flipped = replay(labelled(flip=slice(5000, 5256)), model, trainer, IngestSettings(batch_events=128))
    assert 1 <= flipped.quarantined <= 3


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"loss": "bce"}, "only positives are kept to be replayed.*set replay = 0"),
        ({**BCE, "label_smoothing": 0.1}, "set label_smoothing = 0"),
        ({"loss": "hinge"}, "softmax"),
    ],
)
def test_combinations_that_mean_nothing_are_refused_with_the_reason(wrong, says):
    with pytest.raises(ValidationError, match=says):
        TrainerSettings.model_validate(wrong)


def test_the_loss_under_learning_sets_what_goes_with_it():
    for preset in ("quality", "balanced", "throughput"):
        trainer = TowlineConfig.model_validate({"learning": {"preset": preset, "loss": "bce"}}).trainer
        assert (trainer.loss, trainer.replay, trainer.label_smoothing) == ("bce", 0, 0.0)
        assert TowlineConfig.model_validate({"learning": {"preset": preset, "loss": "bce"}}).model.successors == 0
    with pytest.raises(ValidationError, match="set replay = 0"):
        TowlineConfig.model_validate({"learning": {"loss": "bce"}, "trainer": {"replay": 2}})


# -- figures --


def test_auc_is_the_share_of_pairs_in_the_right_order():
    rng = np.random.default_rng(0)
    p, y = rng.integers(0, 6, 60) / 5, (rng.random(60) < 0.4).astype(float)
    pairs = [(a > b) + 0.5 * (a == b) for a, b in itertools.product(p[y > 0], p[y == 0])]
    assert auc(p, y) == pytest.approx(np.mean(pairs))
    assert math.isnan(auc(p, np.ones(60)))
    assert math.isnan(auc(np.zeros(0), np.zeros(0)))


def test_a_score_is_windowed_and_faded_however_events_are_cut():
    rng = np.random.default_rng(1)
    p, y = rng.random(500), (rng.random(500) < 0.5).astype(float)
    place = np.arange(500)
    whole, cut = LabelScore(200), LabelScore(200)
    whole.add(LabelTests(place, p, y))
    for part in np.split(place, [3, 50, 51, 300]):
        cut.add(LabelTests(part, p[part], y[part]))
    losses = -np.log(np.where(y > 0, p, 1 - p))
    weights = np.exp(-np.arange(499, -1, -1) / 200)
    for score in (whole, cut):
        assert score.tests == 500
        assert score.recent == pytest.approx(losses[-200:].mean())
        assert score.faded == pytest.approx((weights * losses).sum() / weights.sum())
        assert score.auc == pytest.approx(auc(p[-200:], y[-200:]))
        assert score.calibration == pytest.approx(p[-200:].mean() / y[-200:].mean())
    assert math.isnan(LabelScore(5).recent)
    assert log_losses(np.zeros(1), np.ones(1))[0] == pytest.approx(-math.log(1e-7)), "sure and wrong is not infinite"
