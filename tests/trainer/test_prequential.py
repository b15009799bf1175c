"""Which events are tested. What a test is: `tests/trainer/test_learning.py`."""

from __future__ import annotations

import numpy as np
import pytest

from ingest.columns import MAX_LINES
from trainer import prequential
from trainer.examples import Past
from trainer.prequential import drawn

PLACES = np.repeat(np.arange(200_000) * MAX_LINES, 2) + np.tile([0, 1], 200_000)  # two events a record


@pytest.mark.parametrize("share", [0.0, 0.01, 0.25, 1.0])
def test_a_share_of_blocks_is_drawn_whole_and_alike_however_the_stream_is_cut(share: float) -> None:
    out = drawn(PLACES, share)
    blocks = out.reshape(-1, 2 * 64)
    assert (blocks.all(axis=1) == blocks.any(axis=1)).all()
    assert abs(out.mean() - share) <= 4 * np.sqrt(share * (1 - share) / len(blocks))
    cut = np.concatenate([drawn(part, share) for part in np.array_split(PLACES, 77)])
    assert (cut == out).all()


def test_long_records_are_drawn_by_lines_so_that_no_micro_batch_is_all_tests() -> None:
    places = (np.arange(64 * 200)[:, None] * MAX_LINES + np.arange(100)).reshape(-1)
    out = drawn(places, 0.1).reshape(200, 64, 100)
    for first in range(0, 100, 16):
        lot = out[:, :, first : first + 16].reshape(200, -1)
        assert (lot.all(axis=1) == lot.any(axis=1)).all()
    assert abs(out.mean() - 0.1) <= 4 * np.sqrt(0.09 / (200 * 7))
    assert not out.all(axis=(1, 2)).any()


def test_tests_are_cut_where_their_users_have_too_much_to_be_held_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prequential, "_SEEN", 10)
    none = np.zeros(0, np.int64)
    known = np.array([3, 3, 50, 0, 4, 4, 4])
    lists, near = (none, none, none, none), np.zeros((7, 1), np.float32)
    past = Past(np.zeros((7, 1), np.uint64), none, none, none, lists, known, np.zeros(7, np.int64), near)
    parts = prequential._parts(np.array([0, 1, 2, 4, 5, 6]), past)
    assert [part.tolist() for part in parts] == [[0, 1], [2], [4, 5, 6]]
    assert prequential._parts(none, past) == []
