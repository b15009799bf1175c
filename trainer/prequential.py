"""Test, then train: how high the service would have ranked each positive, just before it is learned."""

from __future__ import annotations

import numpy as np

from embedding_store.contract import F32, U64, Bool, EmbeddingStore
from embedding_store.mirror import ItemMirror
from embedding_store.model import ModelSettings
from embedding_store.ranking import Ranker
from ingest.columns import Events
from native.sampling import sample
from trainer.examples import Examples, Past


class Prequential:
    """HR@k, NDCG@k and MRR over a share of the stream, against decayed popularity on the same tests.

    Candidates are the items that a positive has named, minus the user's own; a target that is not among them, or whose
    score is not finite, is a miss; ties count half. The item rows are those of the store's change feed, the ranking
    function is serving's.
    """

    def __init__(self, store: EmbeddingStore, model: ModelSettings, k: int, share: float) -> None:
        self.k, self._share = k, share
        self.mirror = ItemMirror(store, model)
        self._ranker = Ranker(store, model, self.mirror)
        self.tests = 0
        self.hits = self.popular_hits = 0
        self.ndcg = self.reciprocal_ranks = 0.0

    def measure(self, events: Events, past: Past, examples: Examples) -> None:
        """Rank the positives of a micro-batch with the store as it is before them. Raises StoreUnavailable."""
        rows = np.flatnonzero((events.label > 0) & self._sampled(events))
        if not len(rows):
            return
        self.mirror.refresh()
        own: F32 | None = None
        if examples.users is not None:
            numbers = examples.user[: len(events)][rows]
            own = examples.users.vectors[numbers] * examples.users.found[numbers, None]
        with self.mirror.lock:
            vectors, prior, warm = self._ranker.user_outputs(
                past.recent[rows], past.lengths[rows], past.ever[rows], own
            )
            counts = np.diff(past.seen_offsets)[rows]
            offsets = np.zeros(len(rows) + 1, np.int64)
            np.cumsum(counts, out=offsets[1:])
            shift = np.repeat(past.seen_offsets[:-1][rows] - offsets[:-1], counts)
            seen: U64 = past.seen[np.arange(offsets[-1]) + shift]
            ranks, popular = self._ranker.ranks(vectors, prior, warm, offsets, seen, events.item_key[rows])
        tested = ~np.isnan(ranks)
        ranks, popular = ranks[tested], popular[tested]
        self.tests += len(ranks)
        self.hits += int((ranks <= self.k).sum())
        self.popular_hits += int((popular <= self.k).sum())
        self.ndcg += float((1.0 / np.log2(1.0 + ranks[ranks <= self.k])).sum())
        self.reciprocal_ranks += float((1.0 / ranks).sum())

    def _sampled(self, events: Events) -> Bool:
        """A share of the events that is the same whoever measures: by a hash of their place."""
        out = np.empty(len(events), bool)
        sample(events.place, int(self._share * 2**32), out)
        return out
