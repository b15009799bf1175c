"""Which events are tested. What a test is: `tests/trainer/test_learning.py`."""

from __future__ import annotations

import numpy as np
import pytest

from ingest.columns import MAX_LINES
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
