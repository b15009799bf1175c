"""A trainer whose gradients are linear and of one event alone: `python -m tests.chaos.linear` is `towline trainer` with
its learner replaced.

The gradient of an event on its item's row depends on its user and weight, on its user's row on its item and weight. All
values are multiples of 2^-7 and stay below 2^17, so float32 sums of them are exact in any order and any grouping: the
weights that many workers leave behind are those of one worker, bit for bit, if every event was learned exactly once.

TensorFlow, which this learner has no use for, is replaced by nothing: a trainer that is killed every few seconds would
spend most of two cores on importing it. Everything else is the trainer's.
"""

from __future__ import annotations

import sys
from unittest.mock import MagicMock

import numpy as np

from embedding_store.contract import F32, U64

PARTITIONS = 6
DIM = PARTITIONS + 2
"""One column for each partition that the event's user may be of, then two by weight."""


def effect(other: U64, weight: F32) -> F32:
    """(n, DIM) what n events add to a row. other (n,): keys of the event's other side; weight (n,): multiples of 1/8.

    Column other % PARTITIONS counts events; in an item's row that is how many it has had from each partition.
    """
    out = np.zeros((len(other), DIM), np.float32)
    out[np.arange(len(other)), (other % np.uint64(PARTITIONS)).astype(np.int64)] = 1.0
    mixed = other * np.uint64(0x9E3779B97F4A7C15)
    out[:, PARTITIONS] = weight * _sixteenths(mixed, 60)
    out[:, PARTITIONS + 1] = weight * _sixteenths(mixed, 56)
    return out


def _sixteenths(mixed: U64, shift: int) -> F32:
    """(n,) multiples of 1/16 in (0, 1]."""
    nibble = (mixed >> np.uint64(shift)) & np.uint64(15)
    return (nibble.astype(np.float32) + np.float32(1.0)) / np.float32(16.0)


def replace_learner() -> None:
    """From now on `trainer.worker` learns as above."""
    if "trainer.worker" in sys.modules:
        raise AssertionError("trainer.worker has been imported with TensorFlow")
    sys.modules["tensorflow"] = MagicMock()
    import trainer.worker
    from trainer.examples import Examples
    from trainer.learner import Step

    class LinearLearner:
        """Stands in for `trainer.learner.Learner`."""

        def __init__(self, *_: object) -> None:
            pass

        intercept = None

        def learn(self, examples: Examples, clock: int, *, again: bool = False) -> Step:
            """Gradients that SGD with rate 1 takes off: minus the effects of the fresh events."""
            item, user = examples.target[: examples.fresh], examples.user[: examples.fresh]
            weight = examples.weight[: examples.fresh]
            items = np.zeros((len(examples.item_keys), DIM), np.float32)
            users = np.zeros((len(examples.user_keys), DIM), np.float32)
            np.subtract.at(items, item, effect(examples.user_keys[user], weight))
            np.subtract.at(users, user, effect(examples.item_keys[item], weight))
            return Step(
                examples.item_keys, items, examples.user_keys, users, 0.0, examples.fresh, finite=True,
                feature_gradients=np.zeros((0, DIM), np.float32),
            )  # fmt: skip

    trainer.worker.Learner = LinearLearner  # type: ignore[attr-defined, assignment]


def main() -> None:
    """`towline trainer`."""
    replace_learner()
    from infra.cli import main as towline

    sys.argv = ["towline", "trainer"]
    towline()


if __name__ == "__main__":
    main()
