"""The buffer: what was put in comes out, and every positive so far is as likely to be there."""

import numpy as np
import pytest

from trainer.replay import ReplayBuffer


def offer(buffer, start, n, length=2):
    ids = np.arange(start, start + n, dtype=np.uint64)
    recent = np.stack([ids + np.uint64(k + 1) for k in range(length)], axis=1)
    lengths = (ids % np.uint64(length + 1)).astype(np.int64)
    buffer.add(ids, ids * np.uint64(3), recent, lengths, lengths + 40)


def check_whole(drawn, length=2):
    """Columns of one positive stay together."""
    assert (drawn.item == drawn.user * 3).all()
    assert (drawn.recent == np.stack([drawn.user + np.uint64(k + 1) for k in range(length)], axis=1)).all()
    assert (drawn.lengths == drawn.user % (length + 1)).all()
    assert (drawn.ever == drawn.lengths + 40).all()


def test_an_empty_buffer_draws_nothing():
    buffer = ReplayBuffer(10, 3, np.random.default_rng(0))
    drawn = buffer.draw(5)
    assert (len(buffer), len(drawn.user), drawn.recent.shape) == (0, 0, (0, 3))
    offer(buffer, 0, 0, 3)
    assert len(buffer.draw(5).item) == 0


@pytest.mark.parametrize("capacity", [7, 1000, 1024, 5000])
def test_it_grows_to_its_capacity_and_keeps_all_until_then(capacity):
    rng = np.random.default_rng(capacity)
    buffer, offered = ReplayBuffer(capacity, 2, rng), 0
    while offered < 2 * capacity + 10:
        n = int(rng.integers(0, 900))
        offer(buffer, offered, n)
        offered += n
        assert len(buffer) == min(offered, capacity)
        if offered:
            check_whole(buffer.draw(50))
        if 0 < offered <= capacity:
            assert np.unique(buffer.draw(40 * offered).user).size >= 0.99 * offered


@pytest.mark.parametrize("batch", [1, 13, 250])
def test_every_positive_is_equally_likely_to_be_kept(batch):
    """χ² over 10 stretches of the stream: with 9 degrees of freedom above 27.9 once in a thousand."""
    capacity, offered, kept = 40, 500, np.zeros(500)
    rounds = 60 if batch == 1 else 300
    for seed in range(rounds):
        buffer = ReplayBuffer(capacity, 2, np.random.default_rng(seed))
        for start in range(0, offered, batch):
            offer(buffer, start, min(batch, offered - start))
        present = np.unique(buffer.draw(4000).user.astype(int))
        assert len(present) == capacity
        kept[present] += 1
    share = kept.reshape(10, -1).sum(axis=1)
    expected = rounds * capacity / 10
    # kept without replacement: less spread than independent draws, so the bound is on the safe side
    assert ((share - expected) ** 2 / expected).sum() < 27.9
    # and 3.3σ for any single place of the first and last batch
    spread = np.sqrt(rounds * capacity / offered)
    assert abs(kept[:batch].mean() - spread**2) < 3.3 * spread / np.sqrt(min(batch, 30)) + 1
    assert abs(kept[-batch:].mean() - spread**2) < 3.3 * spread / np.sqrt(min(batch, 30)) + 1


def test_draws_are_uniform_over_what_is_kept():
    buffer = ReplayBuffer(100, 2, np.random.default_rng(3))
    offer(buffer, 0, 20)
    counts = np.bincount(buffer.draw(20_000).user.astype(int), minlength=20)
    assert ((counts - 1000) ** 2 / 1000).sum() < 43.8  # χ², 19 degrees of freedom, once in a thousand
