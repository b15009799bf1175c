"""The replay buffer of a worker that begins anew, filled from the histories that the store keeps.

The store is the one source: who was forgotten or evicted has no history there, and does not come back in a replay.
"""

from __future__ import annotations

import numpy as np

from embedding_store.contract import U64, EmbeddingStore
from trainer.replay import ReplayBuffer

_USERS = 4096
"""Histories read in one call."""


def fill(buffer: ReplayBuffer, store: EmbeddingStore, history_length: int, rng: np.random.Generator) -> int:
    """Offer the stored positives to an empty buffer, user by user in random order, until it is full; returns how many.

    Users come in random order, so that every stored positive has the same chance to be among them, each with its
    history as of its own time. The buffer then counts all that are stored as seen: exactly if all were read, else as
    many as the users read let expect. Positives older than a user's `seen_length` newest are no longer stored. One scan
    of the keys of the table. Raises StoreUnavailable.
    """
    users = store.changes("history", None).keys
    users = users[rng.permutation(len(users))]
    offered = read = 0
    while read < len(users) and offered < buffer.capacity:
        part = users[read : read + _USERS]
        offered += _offer(buffer, store, part, history_length)
        read += len(part)
    if read < len(users):
        buffer.passed_over(offered * (len(users) - read) // read)
    return offered


def _offer(buffer: ReplayBuffer, store: EmbeddingStore, users: U64, history_length: int) -> int:
    """All positives of some users, oldest first."""
    histories = store.histories("history", users)
    items = histories.entries["item"]
    lengths = np.diff(histories.offsets)
    user = np.repeat(np.arange(len(users)), lengths)
    place = np.arange(len(items)) - histories.offsets[:-1][user]  # of an entry in its user's history
    back = np.arange(len(items))[:, None] - 1 - np.arange(history_length)
    present = np.arange(history_length) < place[:, None]
    recent = np.zeros(back.shape, np.uint64)
    recent[present] = items[back[present]]
    buffer.add(users[user], items, recent, np.minimum(place, history_length), place)
    return len(items)
