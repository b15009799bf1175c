"""The page of figures is what the kept ones say."""

import json

import pytest

from benchmarks.everything import BENCHMARKS, FIGURES, PAGE, page


@pytest.mark.skipif(not FIGURES.exists(), reason="no figures are kept yet")
def test_the_page_is_of_the_figures_that_are_kept():
    assert PAGE.read_text() == page(json.loads(FIGURES.read_text())), "run python -m benchmarks.everything --page-only"


def test_a_missed_goal_is_told_and_a_figure_that_is_not_there_is_left_out():
    kept = {"store": {"day": "2020-01-02", "commit": "abc", "lookup_apply_over_floor": 2.5, "lost": 0, "cores": 2}}
    text = page(kept)
    assert "2020-01-02, commit abc; cores 2" in text
    assert "| 2.5 | ≤ 2 | missed |" in text
    assert "| 0 | ≤ 0 |  |" in text
    assert "wire" not in text
    assert [line for line in text.splitlines() if line.startswith("## ")] == [f"## store: {BENCHMARKS['store'].about}"]


def test_a_figure_inside_others_is_found():
    figure = next(f for f in BENCHMARKS["learning"].figures if f.path == "peers.item_knn")
    assert figure.of({"peers": {"item_knn": 0.17}}) == 0.17
    assert figure.of({"peers": 3}) is None
