"""Test, then train: how high the service would have ranked each positive, just before it is learned."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from embedding_store.contract import F32, I64, U64, Bool, EmbeddingStore
from embedding_store.mirror import ItemMirror
from embedding_store.model import ModelSettings
from embedding_store.ranking import Arrivals, Ranker
from embedding_store.transitions import Followers, FrozenTransitions
from ingest.columns import MAX_LINES, Events
from native.sampling import sample
from trainer.examples import Examples, Past
from trainer.label_scores import LabelScore, LabelTests
from trainer.scores import Paired, Score

F64 = npt.NDArray[np.float64]

WINDOW = 2000
"""Tests of the windowed figures: a hit rate of .2 is then known to ± .018."""


_BLOCK, _LINES = 64, 16
"""Records in a row, and of each so many lines, that are tested all or not at all."""

_SEEN = 1 << 20
"""Items of users that are in hand at a time, about."""


@dataclass(frozen=True, slots=True)
class Tests:
    """m tests, in stream order. Ranks are inf for a miss."""

    place: I64  # (m,) of the event in its partition
    ranks: F64  # (m,) by the model
    popular: F64  # (m,) by decayed popularity alone
    frozen: F64 | None  # (m,) by the frozen copy, once there is one
    warm: Bool  # (m,) the user has something to be personal about


class Prequential:
    """HR@k, NDCG@k and MRR over a share of the stream, against decayed popularity and a frozen copy, test by test.

    Candidates are the items that a positive has named, minus the user's own; a target that is not among them, or whose
    score is not finite, is a miss; ties count half. The item rows are those of the store's change feed, the ranking
    function is serving's. Histories and popularity are as of each event, rows lag the micro-batch. The frozen copy is
    the model as it was after `freeze_after` events of this worker: rows, gates, layers and popularity; histories go on.
    What it lacks is what learning has been worth since.
    """

    def __init__(
        self,
        store: EmbeddingStore,
        model: ModelSettings,
        k: int,
        share: float,
        *,
        freeze_after: int = 0,
        observe: Callable[[Tests], None] | None = None,
        observe_labels: Callable[[LabelTests], None] | None = None,
    ) -> None:
        """freeze_after: 0 for no frozen copy. observe, observe_labels: are told of all tests."""
        self.k, self._share = k, share
        self._store, self._model = store, model
        self.mirror = ItemMirror(store, model)
        self._ranker = Ranker(store, model, self.mirror)
        self._frozen: Ranker | None = None
        self._freeze_after, self._events, self._observe = freeze_after, 0, observe
        self.labels, self._observe_labels = LabelScore(WINDOW), observe_labels
        self.model, self.popularity = Score(k, WINDOW), Score(k, WINDOW)
        self.warm, self.cold = Score(k, WINDOW), Score(k, WINDOW)
        self.live_since_frozen, self.frozen = Score(k, WINDOW), Score(k, WINDOW)
        self.against_frozen, self.against_popularity = Paired(), Paired()

    def measure(self, events: Events, past: Past, examples: Examples) -> None:
        """Rank the positives of a micro-batch with the store as it is before them. Raises StoreUnavailable."""
        before, self._events = self._events, self._events + len(events)
        rows = np.flatnonzero((events.label > 0) & drawn(events.place, self._share))
        freeze = self._freeze_after and before >= self._freeze_after and self._frozen is None
        if not len(rows) and not freeze:
            return
        self.mirror.refresh()
        if freeze:
            still = FrozenTransitions(self._store) if self._model.successors else None
            self._frozen = Ranker(self._store, self._model, self.mirror.frozen(), still)
        for part in _parts(rows, past):
            self._test(events, past, examples, part)

    def _test(self, events: Events, past: Past, examples: Examples, rows: I64) -> None:
        """Rank some of the positives."""
        own: F32 | None = None
        if examples.users is not None:
            numbers = examples.user[: len(events)][rows]
            own = examples.users.vectors[numbers] * examples.users.found[numbers, None]
        if examples.features is not None:
            own = np.zeros((len(rows), self._model.dim), np.float32) if own is None else own
            examples.features.users.add_to(own, examples.features.rows.vectors, rows)
        offsets, seen = past.seen(rows)
        targets = events.item_key[rows]
        arrivals = Arrivals(rows, events.item_key, (events.weight * (events.label > 0)).astype(np.float32))
        after = None if past.after is None else past.after.take(rows)
        ranks, popular, warm = _ranked(self._ranker, past, rows, own, offsets, seen, targets, arrivals, after)
        frozen = None
        if self._frozen is not None:
            none = Arrivals(np.zeros(len(rows), np.int64), targets[:0], np.zeros(0, np.float32))
            then = self._frozen.transitions(past.recent[rows], past.near[rows])
            frozen, _, _ = _ranked(self._frozen, past, rows, own, offsets, seen, targets, none, then)
        tested = ~np.isnan(ranks)
        self._take(
            Tests(
                events.place[rows][tested],
                ranks[tested],
                popular[tested],
                None if frozen is None else frozen[tested],
                warm[tested],
            )
        )

    def measure_labels(self, events: Events, predicted: F64) -> None:
        """Compare what was predicted of a micro-batch's events with their labels, before they are learned."""
        rows = np.flatnonzero(drawn(events.place, self._share))
        tests = LabelTests(events.place[rows], predicted[rows], (events.label[rows] > 0).astype(np.float64))
        self.labels.add(tests)
        if self._observe_labels is not None:
            self._observe_labels(tests)

    def _take(self, tests: Tests) -> None:
        hits = tests.ranks <= self.k
        self.model.add(tests.ranks)
        self.popularity.add(tests.popular)
        self.warm.add(tests.ranks[tests.warm])
        self.cold.add(tests.ranks[~tests.warm])
        self.against_popularity.add(hits, tests.popular <= self.k)
        if tests.frozen is not None:
            self.live_since_frozen.add(tests.ranks)
            self.frozen.add(tests.frozen)
            self.against_frozen.add(hits, tests.frozen <= self.k)
        if self._observe is not None:
            self._observe(tests)

    @property
    def tests(self) -> int:
        """Positives measured."""
        return self.model.tests

    @property
    def hits(self) -> int:
        """Of them, ranked within k."""
        return self.model.hits

    @property
    def popular_hits(self) -> int:
        """Likewise, by decayed popularity."""
        return self.popularity.hits

    @property
    def ndcg(self) -> float:
        """Sum of NDCG@k."""
        return self.model.ndcg

    @property
    def reciprocal_ranks(self) -> float:
        """Sum of 1/rank."""
        return self.model.reciprocal_ranks


def drawn(place: I64, share: float) -> Bool:
    """(n,) which events are tested: a share of the blocks of their partition, the same whoever measures.

    Whole blocks, by a hash of their number: the rows are brought up to date once for all that are tested together, not
    for each test.
    """
    out = np.empty(len(place), bool)
    sample(place // (MAX_LINES * _BLOCK) + (place % MAX_LINES // _LINES << 44), int(share * 2**32), out)
    return out


def _parts(rows: I64, past: Past) -> list[I64]:
    """The rows, cut where what their users have would be too much to be held at once."""
    if not len(rows):
        return []
    lots = np.cumsum(past.stored_known[rows] + past.fresh_known[rows]) // _SEEN
    return np.split(rows, np.flatnonzero(np.diff(lots)) + 1)


def _ranked(
    ranker: Ranker,
    past: Past,
    rows: I64,
    own: F32 | None,
    offsets: I64,
    seen: U64,
    targets: U64,
    arrivals: Arrivals,
    counted: Followers | None,
) -> tuple[F64, F64, Bool]:
    recent, lengths, ever = past.recent[rows], past.lengths[rows], past.ever[rows]
    with ranker.mirror.lock:
        vectors, prior, warm = ranker.user_outputs(recent, lengths, ever, own)
        boosts = ranker.boosts(counted, ever)
        ranks, popular = ranker.ranks(vectors, prior, warm, offsets, seen, targets, arrivals, boosts)
    return ranks, popular, warm
