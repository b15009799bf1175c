"""Totals, windows and fading against sums by hand; the paired test against the table of the normal distribution."""

import numpy as np
import pytest

from trainer.scores import Paired, Score


@pytest.mark.parametrize("cut", [1, 7, 200])
def test_figures_do_not_depend_on_how_tests_arrive(cut):
    rng = np.random.default_rng(0)
    ranks = np.where(rng.random(150) < 0.1, np.inf, rng.integers(1, 40, 150)).astype(float)
    score = Score(10, 40)
    for at in range(0, 150, cut):
        score.add(ranks[at : at + cut])
    hits = ranks <= 10
    assert (score.tests, score.hits) == (150, hits.sum())
    assert score.hit_rate == pytest.approx(hits.mean())
    assert score.recent == pytest.approx(hits[-40:].mean())
    ages = np.exp(-np.arange(149, -1, -1) / 40)
    assert score.faded == pytest.approx((ages * hits).sum() / ages.sum())
    assert score.ndcg == pytest.approx((1 / np.log2(1 + ranks[hits])).sum())
    assert score.reciprocal_ranks == pytest.approx((1 / ranks).sum())


def test_before_the_first_test_there_is_no_rate():
    score = Score(10, 5)
    score.add(np.zeros(0))
    assert np.isnan([score.hit_rate, score.recent, score.faded]).all()


def test_a_window_that_is_not_full_is_what_there_is():
    score = Score(10, 100)
    score.add(np.array([1.0, 50.0, 2.0, np.inf]))
    assert score.recent == 0.5


def test_the_paired_test_counts_only_where_both_differ():
    paired = Paired()
    first = np.array([True] * 60 + [False] * 30 + [True] * 500 + [False] * 500)
    second = np.array([False] * 60 + [True] * 30 + [True] * 500 + [False] * 500)
    paired.add(first, second)
    assert paired.z == pytest.approx(29 / np.sqrt(90))
    assert paired.p_value == pytest.approx(0.00224, rel=0.02)
    other = Paired()
    other.add(second, first)
    assert other.z == -paired.z
    assert Paired().p_value == 1.0
