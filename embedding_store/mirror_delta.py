"""What changed in a mirror since it was last asked: what a copy of it has to take over."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from embedding_store.contract import I64, U64


@dataclass(slots=True)
class Delta:
    """Slots and keys; those of several refreshes add up."""

    everything: bool = False  # slots were given out anew: nothing of a copy can be kept
    vectors: bool = False  # those of all rows, with their outputs
    towers: bool = False
    popularity: bool = False  # of all rows
    moves: list[tuple[U64, I64 | None]] = field(default_factory=list)  # keys with their new slots; None: gone
    rows: list[I64] = field(default_factory=list)
    named: list[I64] = field(default_factory=list)  # slots whose id is another

    def add(self, later: Delta) -> None:
        """What changed after this."""
        if self.everything or later.everything:
            self.everything = True
            for part in (self.moves, self.rows, self.named):
                part.clear()
            return
        self.vectors |= later.vectors
        self.towers |= later.towers
        self.popularity |= later.popularity
        self.moves += later.moves
        self.rows += later.rows
        self.named += later.named

    def changed(self) -> I64:
        """Slots of changed rows, each once."""
        return _once(self.rows)

    def renamed(self) -> I64:
        """Slots of changed ids, each once."""
        return _once(self.named)


def _once(parts: list[I64]) -> I64:
    return np.unique(np.concatenate(parts)) if parts else np.zeros(0, np.int64)
