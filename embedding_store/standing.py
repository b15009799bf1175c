"""How a key stands in a shard; each standing but MISSING and ROW has an index, which bounds how many there are."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from embedding_store.records import Block
from native.rows import BARE, FENCED

Standings = npt.NDArray[np.uint8]

MISSING = 0
ROW = 1
STUB = 2  # counted, not admitted yet: a header with a count
EVICTED = 3  # had a row, which made room or expired: a header without count
FORGOTTEN = 4  # was forgotten: a header without count, and a fence


def standings(block: Block) -> Standings:
    """(n,) how each key stands."""
    out = block.found.astype(np.uint8)  # ROW, MISSING
    flags = block.stored["entries"]
    if (flags & BARE).any():
        bare = (flags & BARE) != 0
        mark = np.where((flags & FENCED) != 0, np.uint8(FORGOTTEN), np.uint8(EVICTED))
        out[bare] = np.where(block.stored["count"] > 0, np.uint8(STUB), mark)[bare]
    return out
