"""The ids that both sides learn from: users with a taste, by Zipf, on items by Zipf."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]

_OWN = 0.8


@dataclass(frozen=True, slots=True)
class Ids:
    """n events in order."""

    user: I64  # (n,)
    item: I64  # (n,)

    @classmethod
    def drawn(cls, events: int, users: int, items: int, tastes: int, seed: int = 1) -> Ids:
        """Each user has one of `tastes`, an order of all items; most of his events follow it, the others a common one.

        Places in an order, and users, have probability ∝ 1 / (place + 10).
        """
        rng = np.random.default_rng(seed)
        orders = np.stack([np.arange(items), *(rng.permutation(items) for _ in range(tastes))])
        taste = rng.integers(1, tastes + 1, users)
        user, place = _zipf(rng, events, users), _zipf(rng, events, items)
        own = rng.random(events) < _OWN
        return cls(user, orders[np.where(own, taste[user], 0), place])

    def save(self, path: Path) -> None:
        """As .npz."""
        np.savez(path, user=self.user, item=self.item)

    @classmethod
    def load(cls, path: Path) -> Ids:
        """What `save` wrote."""
        with np.load(path) as arrays:
            return cls(arrays["user"], arrays["item"])

    def record(self, start: int, stop: int) -> bytes:
        """Events [start, stop) as one record of JSON lines."""
        pairs = zip(self.user[start:stop].tolist(), self.item[start:stop].tolist(), strict=True)
        return "\n".join(f'{{"user_id":{user},"item_id":{item}}}' for user, item in pairs).encode()


def _zipf(rng: np.random.Generator, n: int, ranks: int) -> I64:
    cumulated = np.cumsum(1.0 / (10.0 + np.arange(ranks)))
    found: I64 = np.searchsorted(cumulated, rng.random(n) * cumulated[-1]).clip(0, ranks - 1).astype(np.int64)
    return found
