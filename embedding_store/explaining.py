"""Why an item stands where it stands for a user: its score, taken apart into what was added up."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from embedding_store.contract import F32, I64, U64
from embedding_store.mirror_reads import MirrorRows
from embedding_store.model import ModelSettings
from embedding_store.ranking import Ranker, Users, recent_items
from embedding_store.towers import bucket_of, item_factor, pull_back, user_factor
from native.features import FeatureValues
from native.pooling import pool_histories


@dataclass(frozen=True, slots=True)
class ItemParts:
    """The same dot product, taken apart on the item's side: row + Σ features + bias."""

    row: float  # what the item's own row adds
    features: dict[int, float]  # what each of its features adds, by number
    bias: float  # of dense layers, as `Explanation.bias`


@dataclass(frozen=True, slots=True)
class Explanation:
    """score = Σ clocks + own + Σ features + bias + popularity + transition, and Σ clocks = Σ contributions, but for
    rounding.

    Of a user who is not warm, or whose vector is not finite, the score is the log of decayed popularity alone, and the
    rest is zero and empty.
    """

    users: Users  # the one user
    item: MirrorRows  # the one item
    personal: bool
    score: float  # what `Ranker.recommend` ranks by; -inf: no positive event has named the item
    rank: float  # among the items that the user has not seen, and this one; inf where the score is -inf
    seen: bool  # it is in the user's history
    clocks: F32  # (clocks,) of the dot product, what each part of the pooled history adds
    own: float  # what the user's own id vector adds
    features: dict[int, float]  # what each feature of the user and the request adds, by its number in the model
    bias: float  # what dense layers add whatever the history says, as far as the ReLUs that are open now stay open
    popularity: float
    transition: float  # what came after the user's newest items
    keys: U64  # (h,) items of the pooled history that have a row, each once
    ids: list[bytes]  # h
    times: I64  # (h,) places of the history that the item has
    contributions: F32  # (h,) what it adds, largest first
    of_item: ItemParts | None  # None: the model has no features of items, or nothing is personal


def explain(
    model: ModelSettings, ranker: Ranker, user: int, item: int, request: FeatureValues | None = None
) -> Explanation:
    """One user and one item by key, all of one state of the mirror. Raises StoreUnavailable.

    request: (1,) the request's features.

    Dense layers are affine around the user's pooled history x: f(x)·O = x·w + bias, w = ∂(f(x)·O)/∂x for the item's
    output O; without any, w = O and bias = 0. With shares and scales s of `native.pooling`, place k adds
    Σ_v s_v·share_vk·(row_k[part v] · w[part v]). Temperature, and for cosines the user's norm, are factors of w.
    """
    histories, own, counted = ranker.read(np.array([user], np.uint64))
    features = ranker.features(np.array([user], np.uint64), request)
    target = np.array([item], np.uint64)
    nothing = np.zeros(0, np.uint64)
    recent, lengths = recent_items(histories, model.history_length)
    pooled_keys = recent[0, : int(lengths[0])]
    with ranker.mirror.lock:
        users = ranker.users_of(histories, own, counted, features)
        row = ranker.mirror.items(target)
        seen = bool((users.seen_keys == item).any())
        others = users.seen_keys[users.seen_keys != item]
        personal = bool(users.warm[0] and np.isfinite(users.vectors).all())
        vector, prior = (users.vectors[0], float(users.prior[0])) if personal else (None, None)
        boost = users.boost(0) if personal else None
        score = float(ranker.score(vector, target, prior=prior, boost=boost)[0])
        rank = ranker.rank(vector, exclude=others, target=item, prior=prior, boost=boost)
        if vector is None:
            none = np.zeros(0, np.float32)
            times = np.zeros(0, np.int64)
            return Explanation(
                users, row, personal, score, rank, seen, none, 0.0, {}, 0.0, score, 0.0, nothing, [], times, none, None
            )
        rows, found = ranker.mirror.raw_vectors(pooled_keys)
        slots = np.full((1, recent.shape[1]), -1, np.int64)
        slots[0, : len(found)] = np.where(found, np.arange(len(found)), -1)
        gates, bucket = ranker.mirror.gates, bucket_of(np.diff(histories.offsets))
        shares = np.empty((1, *gates.logits.shape), np.float32)
        pooled = np.zeros((1, model.dim), np.float32)
        pool_histories(rows, slots, gates.logits, gates.scales, bucket, shares, pooled)
        own_vector = np.zeros_like(pooled) if own is None else own.vectors * own.found[:, None]
        added: dict[int, F32] = {}
        if features is not None and ranker.mirror.features is not None:
            added = ranker.mirror.features.parts(features)
        layers, x = ranker.mirror.user_layers, pooled + own_vector + sum(added.values(), np.float32(0.0))
        pull = pull_back(layers, x, row.vectors)[0] * user_factor(model, layers, x)[0]
        distinct, places = np.unique(pooled_keys[found], return_inverse=True)
        ids = ranker.mirror.describe(ranker.mirror.slots(distinct))[1]
        dot = float(vector @ row.vectors[0])
        of_item = _of_item(model, ranker, item, vector, dot) if row.found[0] else None
    parts = len(model.clocks)
    clocks = (pooled[0] * pull).reshape(parts, -1).sum(axis=1)
    own_part = float(own_vector[0] @ pull)
    of_features = {number: float(part @ pull) for number, part in added.items()}
    dot = float(vector @ row.vectors[0])
    transition = 0.0 if boost is None else float(boost.values[boost.keys == item].sum())
    per_clock = (rows * pull).reshape(len(rows), parts, model.dim // parts).sum(axis=2)  # (places, clocks)
    weights = gates.scales[:, bucket[0]] * shares[0, :, : len(rows)].T  # (places, clocks)
    contributions = np.zeros(len(distinct), np.float32)
    np.add.at(contributions, places, (per_clock * weights).sum(axis=1)[found])
    order = np.argsort(-contributions, kind="stable")
    return Explanation(
        users,
        row,
        personal,
        score,
        rank,
        seen,
        clocks,
        own_part,
        of_features,
        dot - float(clocks.sum()) - own_part - sum(of_features.values()) if model.dense_layers else 0.0,
        score - dot - transition,
        transition,
        distinct[order],
        [ids[i] for i in order.tolist()],
        np.bincount(places, minlength=len(distinct))[order],
        contributions[order],
        of_item,
    )


def _of_item(model: ModelSettings, ranker: Ranker, item: int, vector: F32, dot: float) -> ItemParts | None:
    """As the user's side: layers are affine around the item's vector. Call under the mirror's lock."""
    known = ranker.mirror.features
    if known is None or not known.of_items:
        return None
    whole = ranker.mirror.raw_vectors(np.array([item], np.uint64))[0]
    layers = ranker.mirror.item_layers
    pull = pull_back(layers, whole, vector[None, :])[0] * item_factor(model, layers, whole)[0]
    parts = {number: float(part @ pull) for number, part in known.parts(known.values_of_item(item)).items()}
    row = float(whole[0] @ pull) - sum(parts.values())
    return ItemParts(row, parts, dot - row - sum(parts.values()) if model.dense_layers else 0.0)
