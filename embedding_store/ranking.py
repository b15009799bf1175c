"""From a user's history to ranked items: one function for the trainer's evaluation and the service's answers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from embedding_store.contract import F32, I64, U64, Bool, EmbeddingStore, Histories, Rows
from embedding_store.feature_mirror import read_values
from embedding_store.item_filter import ItemFilter
from embedding_store.mirror_reads import MirrorReads
from embedding_store.model import ModelSettings
from embedding_store.scanning import Asked, Items, Scanner
from embedding_store.towers import bucket_of, user_outputs
from embedding_store.transitions import Boosts, Followers, StoredTransitions, Transitions, newest_of
from native.features import FeatureValues
from native.pooling import pool_histories
from native.scan import cosine_items, rank_of, ranks_of, score_items, top_k

_FEW = 64
"""Where less than one item in so many passes a filter, those are scored alone: a row that
is fetched by itself costs as much as codes of dozens."""
_TOGETHER = 64
"""Users scored by one product: scores of so many stay in the cache for most catalogues."""
_LOOK_EVERY_S = 1.0
_EVERY, _ALONE = -1, -2
"""In place of the number of a mask: any item may be answered; those that pass are scored alone."""


@dataclass(frozen=True, slots=True)
class Users:
    """Users as they stand; row i answers key i."""

    vectors: F32  # (n, output_dim) outputs of the user tower; zeros where not warm
    prior: F32  # (n,) weight of log popularity in their scores
    found: Bool  # (n,) an event of theirs was applied
    warm: Bool  # (n,) something to be personal about: an item of their history, a vector of their own, a feature
    clock: I64  # (n,)
    count: I64  # (n,)
    updated_ms: I64  # (n,)
    seen_offsets: I64  # (n + 1,)
    seen_keys: U64  # items of user i: seen_keys[seen_offsets[i]:seen_offsets[i + 1]], oldest first
    boosts: Boosts | None  # what transitions add to their scores; None: the model keeps none

    def boost(self, i: int) -> Boosts | None:
        """Of user i alone."""
        return None if self.boosts is None else self.boosts.at(i)


@dataclass(frozen=True, slots=True)
class Ranked:
    """Up to k items, best first."""

    keys: U64
    ids: list[bytes]  # canonical bytes
    scores: F32
    clock: I64
    updated_ms: I64


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Events that the store does not hold yet, in order, and how many of them come before each of m tests."""

    before: I64  # (m,) not falling
    items: U64  # (e,)
    positives: F32  # (e,) what each adds to its item's popularity; 0 for a negative


class Ranker:
    """Exact ranking over the mirror."""

    def __init__(
        self,
        store: EmbeddingStore,
        model: ModelSettings,
        mirror: MirrorReads,
        transitions: Transitions | None = None,
        scanner: Scanner | None = None,
    ) -> None:
        """transitions: where they are read, if not in the store. scanner: of passes over all items; None: the caller's
        thread alone.
        """
        self._scanner = scanner or Scanner()
        self._popular = 0, -_LOOK_EVERY_S  # a popular slot, and when it was looked for
        self._store, self._model, self._mirror = store, model, mirror
        self._transitions = StoredTransitions(store) if transitions is None else transitions

    @property
    def mirror(self) -> MirrorReads:
        """What is ranked."""
        return self._mirror

    def users(self, keys: U64, request: FeatureValues | None = None) -> Users:
        """Read histories (id vectors, features) from the store and run the user tower. Raises StoreUnavailable.

        request: n rows, of the features of each user's request.
        """
        return self.users_of(*self.read(keys), self.features(keys, request))

    def features(self, keys: U64, request: FeatureValues | None = None) -> FeatureValues | None:
        """(n,) what is kept of users' features, then those of their requests; None where none are declared.

        Raises StoreUnavailable.
        """
        known = self._mirror.features
        if known is None:
            return None
        given = FeatureValues.empty(len(keys)) if request is None else request
        if not known.of_users:
            return given
        return read_values(self._store, known.schema, "user_features", keys).beside(given)

    def read(self, keys: U64) -> tuple[Histories, Rows | None, Followers | None]:
        """What the store holds of users: histories, and, if the model has them, id vectors and `transitions` from their
        newest items. Raises StoreUnavailable."""
        own: Rows | None = None
        if not self._model.user_id_vector:
            histories = self._store.histories("history", keys)
        else:
            histories, own = self._store.histories_and_rows("history", "user", keys)
        return histories, own, self.transitions(*newest_of(histories, self._model.history_length))

    def users_of(
        self, histories: Histories, own: Rows | None, counted: Followers | None,
        features: FeatureValues | None = None,
    ) -> Users:  # fmt: skip
        """The user tower over what `read` and `features` returned."""
        clock, updated_ms = histories.clock, histories.updated_ms
        if own is not None:
            clock, updated_ms = np.maximum(clock, own.clock), np.maximum(updated_ms, own.updated_ms)
        recent, lengths = recent_items(histories, self._model.history_length)
        ever = np.diff(histories.offsets)
        with self._mirror.lock:
            own_vectors = None if own is None else own.vectors * own.found[:, None]
            if features is not None and self._mirror.features is not None:
                added = self._mirror.features.sums(features)[0]
                own_vectors = added if own_vectors is None else own_vectors + added
            vectors, prior, warm = self.user_outputs(recent, lengths, ever, own_vectors)
            boosts = self.boosts(counted, ever)
        return Users(
            vectors=vectors,
            prior=prior,
            found=histories.found,
            warm=warm,
            clock=clock,
            count=histories.count,
            updated_ms=updated_ms,
            seen_offsets=histories.offsets,
            seen_keys=np.ascontiguousarray(histories.entries["item"]),
            boosts=boosts,
        )

    def transitions(self, recent: U64, near: F32) -> Followers | None:
        """What came after items `recent` (m, length), newest first, of `near_weights` (m, r); None: none are kept.

        One read where transitions are the store's. Raises StoreUnavailable.
        """
        return self._transitions.after(recent, near) if self._model.successors else None

    def boosts(self, counted: Followers | None, ever: I64) -> Boosts | None:
        """What `transitions` add to scores of users who have `ever` (m,) items. Call under the mirror's lock."""
        if counted is None:
            return None
        popularity = self._mirror.log_popularity(counted.keys)
        return counted.boosts(
            popularity, self._model.popularity_half_life, self._mirror.gates.worth[:, bucket_of(ever)]
        )

    def recommend(
        self,
        vector: F32 | None,
        *,
        exclude: U64,
        k: int,
        only: U64 | None = None,
        wanted: ItemFilter | None = None,
        prior: float | None = None,
        boost: Boosts | None = None,
    ) -> Ranked:
        """The k best items for a user vector; None ranks by decayed popularity. Exact.

        prior: the user's weight of log popularity; None: what the model begins with. boost: of the one user; where
        there is no vector it is left out.

        exclude: keys left out; only: keys to choose from (unknown ones are ignored); wanted: what items must pass.
        Items that no positive event has named are never recommended.
        """
        with self._mirror.lock:
            slots, mask = self._chosen(only, exclude, wanted)
            if slots is not None:
                weight = self._model.popularity_weight if prior is None else prior
                scores = self._mirror.scores(vector, weight, slots)
                if vector is not None:
                    self._add(boost, scores, slots)
                return self._best(scores, k, slots)
            scores = self._scores(vector, exclude, prior, boost)
            if mask is not None:
                scores = np.where(mask, scores, np.float32(-np.inf))
            return self._best(scores, k)

    def similar(
        self, vectors: F32, *, exclude: U64, k: int, only: U64 | None = None, wanted: ItemFilter | None = None
    ) -> Ranked:
        """The k items nearest to given outputs (n, output_dim), by cosine to the sum of their directions. Exact.

        exclude, only and wanted as in `recommend`; no item without a positive event, no row of zeros.
        """
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        total = np.divide(vectors, lengths, out=np.zeros_like(vectors), where=lengths > 0).sum(axis=0)
        length = np.linalg.norm(total)
        direction = np.ascontiguousarray(total / length if length > 0 else total, np.float32)
        with self._mirror.lock:
            outputs, popularity, _ = self._mirror.columns()
            slots, mask = self._chosen(only, exclude, wanted)
            if slots is not None:
                outputs, popularity = outputs[slots], popularity[slots]
            scores = np.empty(len(popularity), np.float32)
            cosine_items(outputs, popularity, direction, scores)
            if slots is None:
                out = self._mirror.slots(exclude)
                scores[out[out >= 0]] = -np.inf
            if mask is not None:
                scores = np.where(mask, scores, np.float32(-np.inf))
            return self._best(scores, k, slots)

    def score(self, vector: F32 | None, keys: U64, *, prior: float | None = None, boost: Boosts | None = None) -> F32:
        """(n,) scores of keys, those that `recommend` ranks by; -inf where it would never answer them."""
        with self._mirror.lock:
            slots = self._mirror.slots(keys)
            outputs, popularity, floor = self._mirror.columns()
            scores = np.full(len(keys), -np.inf, np.float32)
            there = np.flatnonzero(slots >= 0)
            if vector is None:
                scores[there] = popularity[slots[there]]
                return scores
            found = np.empty(len(there), np.float32)
            weight = np.float32(self._model.popularity_weight if prior is None else prior)
            user = np.ascontiguousarray(vector, np.float32)
            score_items(outputs[slots[there]], popularity[slots[there]], floor, user, weight, found)
            scores[there] = found
            if boost is not None and len(boost.keys):
                order = np.argsort(boost.keys)
                at = np.minimum(np.searchsorted(boost.keys[order], keys), len(order) - 1)
                scores += np.where(boost.keys[order][at] == keys, boost.values[order][at], np.float32(0.0))
        return scores

    def _best(self, scores: F32, k: int, slots: I64 | None = None) -> Ranked:
        """Of scores (n,) of `slots` (n,), rising; None: of all. Call under the mirror's lock."""
        at, best = np.empty(k, np.int64), np.empty(k, np.float32)
        n = top_k(scores, at, best)
        keys, ids, clock, updated_ms = self._mirror.describe(at[:n] if slots is None else slots[at[:n]])
        return Ranked(keys, ids, best[:n].copy(), clock, updated_ms)

    def recommend_many(
        self,
        vectors: F32,
        priors: F32,
        excludes: Sequence[U64],
        ks: Sequence[int],
        boosts: Sequence[Boosts | None] | None = None,
        wanted: Sequence[ItemFilter | None] | None = None,
    ) -> list[Ranked]:
        """`recommend` of m user vectors (m, output_dim) in one pass over the items.

        priors (m,) weights of log popularity, as `Users.prior`; excludes: keys left out for each; boosts and
        wanted: of each. Whose filter few items pass is answered from those, without the pass.
        The pass knows nothing of boosts. They are few and take nothing away: whoever is among the best with them is
        either among the best without, or boosted.
        """
        m, k = len(vectors), np.array(ks, np.int64)
        alone: dict[int, Ranked] = {}
        slots = np.empty((m, max(1, int(k.max(initial=0)))), np.int64)
        best = np.full(slots.shape, -np.inf, np.float32)
        offsets = np.zeros(m + 1, np.int64)
        np.cumsum([len(keys) for keys in excludes], out=offsets[1:])
        user = np.repeat(np.arange(m), np.diff(offsets))
        with self._mirror.lock:
            outputs, popularity, floor = self._mirror.columns()
            out = self._mirror.slots(np.concatenate([*excludes, np.zeros(0, np.uint64)]))
            excluded = out[np.lexsort((out, user))]  # unknown ones, -1, are no item's
            users = np.ascontiguousarray(vectors, np.float32)
            weights = np.ascontiguousarray(priors, np.float32)
            likely = self._likely(popularity)
            masks, masked = self._masks(wanted or [None] * m)
            for i in np.flatnonzero(masked == _ALONE).tolist():
                alone[i] = self.recommend(
                    users[i], exclude=excludes[i], k=int(k[i]), wanted=wanted[i] if wanted else None,
                    prior=float(weights[i]), boost=boosts[i] if boosts else None,
                )  # fmt: skip
                k[i] = 0
            sizes = np.zeros(m, np.int64)
            if len(alone) < m:
                items = Items(outputs, popularity, floor, *self._mirror.coarse())
                asked = Asked(users, weights, offsets, excluded, masks, masked, k)
                sizes = self._scanner.top_k(items, asked, likely, slots, best)
            for i, boost in enumerate(boosts or ()):
                if boost is not None and len(boost.keys) and i not in alone:
                    mask = masks[masked[i]] if masked[i] >= 0 else None
                    sizes[i] = self._boosted(users[i], weights[i], excludes[i], mask, int(k[i]), boost, slots[i],
                                             best[i], int(sizes[i]))  # fmt: skip
            described = [self._mirror.describe(row[:n]) for row, n in zip(slots, sizes.tolist(), strict=True)]
        return [
            alone.get(i) or Ranked(keys, ids, scores[: len(ids)], clock, updated_ms)
            for i, ((keys, ids, clock, updated_ms), scores) in enumerate(zip(described, best, strict=True))
        ]

    def _likely(self, popularity: F32) -> int:
        """A slot among the most popular, as of a second ago: looking takes half a millisecond of a million."""
        slot, looked_s = self._popular
        now_s = time.monotonic()
        if slot >= len(popularity) or now_s - looked_s > _LOOK_EVERY_S:
            slot = int(popularity.argmax()) if len(popularity) else 0
            self._popular = slot, now_s
        return slot

    def _masks(self, wanted: Sequence[ItemFilter | None]) -> tuple[Bool, I64]:
        """((c, n) masks of distinct filters, (m,) which is whose: `_EVERY` for no filter, `_ALONE` where few pass)."""
        which: dict[ItemFilter | None, int] = {None: _EVERY}
        masks: list[Bool] = []
        for one in wanted:
            if one is not None and one not in which:
                mask = self._mirror.passing(one)
                few = _FEW * np.count_nonzero(mask) <= len(mask)
                which[one] = _ALONE if few else len(masks)
                masks += [] if few else [mask]
        stacked = np.stack(masks) if masks else np.zeros((1, 0), np.bool_)
        return stacked, np.array([which[one] for one in wanted], np.int64)

    def _boosted(
        self,
        vector: F32,
        prior: np.float32,
        exclude: U64,
        mask: Bool | None,
        k: int,
        boost: Boosts,
        slots: I64,
        best: F32,
        size: int,
    ) -> int:
        """Put a user's boosted items among the `size` best of `slots` and `best` (≥ k,), in place; how many there are.

        Call under the mirror's lock.
        """
        mine = np.setdiff1d(self._mirror.slots(boost.keys), np.append(self._mirror.slots(exclude), -1))
        mine = mine if mask is None else mine[mask[mine]]
        scores = self._mirror.scores(vector, float(prior), mine)
        self._add(boost, scores, mine)
        others = ~np.isin(slots[:size], mine)
        at, all_scores = np.concatenate([slots[:size][others], mine]), np.concatenate([best[:size][others], scores])
        order = np.lexsort((at, -all_scores))
        order = order[np.isfinite(all_scores[order])][:k]
        slots[: len(order)], best[: len(order)] = at[order], all_scores[order]
        return len(order)

    def ranks(
        self,
        vectors: F32,
        prior: F32,
        warm: Bool,
        seen_offsets: I64,
        seen: U64,
        targets: U64,
        arrivals: Arrivals,
        boosts: Boosts | None = None,
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """`rank` of m targets for m users at once, by the model and by decayed popularity alone.

        vectors (m, output_dim), prior (m,) weights of log popularity; users not warm are ranked by popularity; user i
        has seen seen[seen_offsets[i]:seen_offsets[i + 1]]. Popularity is as of each test: `arrivals` come on top of
        what the mirror holds. boosts: of the m users. NaN where the user has seen the target itself: not a test.
        """
        ranks, popular = np.empty(len(targets)), np.empty(len(targets))
        with self._mirror.lock:
            outputs, popularity, floor = self._mirror.columns()
            popularity, gains = popularity.copy(), self._mirror.gains(arrivals.positives)
            arrived = self._mirror.slots(arrivals.items)
            slots, target_slots = self._mirror.slots(seen), self._mirror.slots(targets)
            boosted = None if boosts is None else self._mirror.slots(boosts.keys)
            for start in range(0, len(targets), _TOGETHER):
                part = slice(start, start + _TOGETHER)
                scores = vectors[part] @ outputs.T
                if boosts is not None and boosted is not None:
                    bounds = boosts.offsets[start : start + len(scores) + 1]
                    at, those = boosted[bounds[0] : bounds[-1]], boosts.values[bounds[0] : bounds[-1]]
                    row = np.repeat(np.arange(len(scores)), np.diff(bounds))
                    scores[row[at >= 0], at[at >= 0]] += those[at >= 0]
                first = int(arrivals.before[start - 1]) if start else 0
                ranks_of(scores, popularity, floor, prior[part], warm[part], seen_offsets[start:], slots,
                         target_slots[part], arrivals.before[part] - first, arrived[first:], gains[first:],
                         ranks[part], popular[part])  # fmt: skip
        user = np.repeat(np.arange(len(targets)), np.diff(seen_offsets))
        repeated = user[seen == targets[user]]  # by key: the mirror may not know the item
        ranks[repeated] = popular[repeated] = np.nan
        return ranks, popular

    def user_outputs(self, recent: U64, lengths: I64, ever: I64, own: F32 | None) -> tuple[F32, F32, Bool]:
        """((m, output_dim) user tower outputs, (m,) weights of log popularity, (m,) warm) against the mirror's rows.

        recent (m, length) items newest first, lengths (m,) of them, ever (m,) items of the whole histories; own
        (m, dim) id vectors and what features add up to, where the model has them. Call under the mirror's lock to have
        all of it from one state.
        """
        slots = np.full(recent.shape, -1, np.int64)
        present = np.arange(recent.shape[1]) < lengths[:, None]
        vectors, found = self._mirror.raw_vectors(recent[present])
        slots[present] = np.where(found, np.arange(len(found)), -1)
        gates, bucket = self._mirror.gates, bucket_of(ever)
        pooled = np.zeros((len(recent), self._model.dim), np.float32)
        shares = np.empty((len(recent), *gates.logits.shape), np.float32)
        pool_histories(vectors, slots, gates.logits, gates.scales, bucket, shares, pooled)
        warm = np.asarray((slots >= 0).any(axis=1))
        if own is not None:
            pooled, warm = pooled + own, np.asarray(warm | (own != 0).any(axis=1))
        outputs = user_outputs(self._model, self._mirror.user_layers, pooled) * warm[:, None]
        return outputs.astype(np.float32, copy=False), gates.prior[bucket], warm

    def rank(
        self,
        vector: F32 | None,
        *,
        exclude: U64,
        target: int,
        prior: float | None = None,
        boost: Boosts | None = None,
    ) -> float:
        """The place of `target` in what `recommend` would answer: 1 + better + half of the ties; inf if absent."""
        with self._mirror.lock:
            slot = int(self._mirror.slots(np.array([target], np.uint64))[0])
            return float("inf") if slot < 0 else float(rank_of(self._scores(vector, exclude, prior, boost), slot))

    def _chosen(self, only: U64 | None, exclude: U64, wanted: ItemFilter | None) -> tuple[I64 | None, Bool | None]:
        """(slots, rising, of the known ones of `only` that pass, without `exclude`: a pass need see no others; or None:
        all, but for what is not of the mask, if there is one)."""
        mask = None if wanted is None else self._mirror.passing(wanted)
        if only is not None:
            slots = self._mirror.slots(only)
            slots = slots[slots >= 0]
            slots = slots if mask is None else slots[mask[slots]]
        elif mask is not None and _FEW * np.count_nonzero(mask) <= len(mask):
            slots = np.flatnonzero(mask)
        else:
            return None, mask
        return np.setdiff1d(slots, np.append(self._mirror.slots(exclude), -1)), None

    def _scores(self, vector: F32 | None, exclude: U64, prior: float | None, boost: Boosts | None) -> F32:
        scores = self._mirror.scores(vector, self._model.popularity_weight if prior is None else prior)
        if vector is not None:
            self._add(boost, scores)
        out = self._mirror.slots(exclude)
        scores[out[out >= 0]] = -np.inf
        return scores

    def _add(self, boost: Boosts | None, scores: F32, slots: I64 | None = None) -> None:
        """Add a user's boost to scores of `slots`, rising; None: of all. Call under the mirror's lock."""
        if boost is None or not len(boost.keys):
            return
        at = self._mirror.slots(boost.keys)
        here = at >= 0
        if slots is not None and len(slots):
            places = np.minimum(np.searchsorted(slots, at), len(slots) - 1)
            here &= slots[places] == at
            at = places
        elif slots is not None:
            return
        scores[at[here]] += boost.values[here]


def recent_items(histories: Histories, length: int) -> tuple[U64, I64]:
    """((n, length) the newest items of each history, newest first, (n,) how many of them there are)."""
    ends = histories.offsets[1:]
    lengths = np.minimum(np.diff(histories.offsets), length)
    places = ends[:, None] - 1 - np.arange(length)
    present = np.arange(length) < lengths[:, None]
    recent = np.zeros(places.shape, np.uint64)
    recent[present] = histories.entries["item"][places[present]]
    return recent, lengths
