"""From decoded events to what a learning step needs.

Histories as of each event, rows, and who may be compared with whom.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from embedding_store.contract import ENTRY, F32, I64, U64, Bool, EmbeddingStore, Histories, Rows
from embedding_store.model import ModelSettings
from embedding_store.transitions import REACH, Followers, StoredTransitions, near_weights
from ingest.columns import Events
from native.features import REQUEST
from native.grouping import grouped, in_order
from native.histories import ever_known, joined, known_before, laid_out, newest_known, seen_before
from native.key_index import Numbered, numbered
from trainer.features import ExampleFeatures, FeatureReader, Recorded
from trainer.replay import ReplayBuffer
from trainer.row_reader import RowReader

Entries = npt.NDArray[np.void]

Lists = tuple[I64, Entries, I64, Entries]
"""(offsets (users + 1,), stored entries, offsets (users + 1,), fresh entries), by user and each user's oldest first."""


@dataclass(frozen=True, slots=True)
class Past:
    """What is known of each event's user strictly before the event."""

    recent: U64  # (n, history_length) items, newest first
    lengths: I64  # (n,) how many of them
    ever: I64  # (n,) items of the whole history, as far as it is kept
    user: I64  # (n,) number of the event's user
    lists: Lists
    stored_known: I64  # (n,) how many of its user's stored entries an event knows
    fresh_known: I64  # (n,) likewise of the fresh ones
    near: F32  # (n, min(history_length, REACH)) what the newest items weigh as what an event comes after
    after: Followers | None = None  # transitions from the newest items; None: the model keeps none

    def seen(self, rows: I64) -> tuple[I64, U64]:
        """(offsets (m + 1,), items that the users of m of the events have, one after another, repeats allowed)."""
        return _seen(self.lists, self.user[rows], self.stored_known[rows], self.fresh_known[rows])


@dataclass(frozen=True, slots=True)
class Examples:
    """n examples of a step: the fresh events first, then replayed positives."""

    fresh: int  # how many are events of this micro-batch
    items: Rows  # (u,) rows of every item that occurs, numbered
    item_keys: U64  # (u,)
    target: I64  # (n,) number of the example's item
    recent: I64  # (n, history_length) numbers of the history's items, newest first, -1 for none
    length: I64  # (n,) items of the whole history
    is_row: Bool  # (n,) positives, or all where labels are learned, with something to predict from
    is_column: Bool  # (n,) all but replays of a forgotten user or item: nothing of theirs may be learned again
    label: F32  # (n,) 1 for positives and replays, 0 for explicit negatives
    weight: F32  # (n,)
    seen_start: I64  # (n,)
    seen_stop: I64  # (n,)
    seen: I64  # numbers of items that example i's user has: seen[seen_start[i]:seen_stop[i]]; -1: doesn't occur here
    user_keys: U64  # (v,) users, numbered; empty unless the model has user vectors
    users: Rows | None  # (v,)
    user: I64  # (n,) number of the example's user, -1 without user vectors
    positive_weight: float  # of the fresh events
    features: ExampleFeatures | None = None  # None: the model has none

    after: After | None = None  # transitions from the newest items of each fresh event; None: the model keeps none

    @property
    def vectors(self) -> F32:
        """(u, dim) rows of the items, their features added."""
        return self.items.vectors if self.features is None else self.features.vectors


@dataclass(frozen=True, slots=True)
class After:
    """What came after the newest items of fresh event i: items[bounds[i]:bounds[i + 1]], see `Followers`."""

    bounds: I64  # (fresh + 1,)
    items: I64  # numbers of those that occur here
    direct: F32
    near: F32


def positives(events: Events) -> Entries:
    """Sequence entries of the positive events, and nothing of the others."""
    rows = np.flatnonzero(events.label > 0)
    entries = np.empty(len(rows), ENTRY)
    entries["time_ms"], entries["place"] = events.time_ms[rows], events.place[rows]
    entries["item"], entries["partition"] = events.item_key[rows], events.partition[rows]
    entries["weight"] = events.weight[rows]
    return entries


class ExampleReader:
    """Reads what the store knows and lays this worker's unapplied positives over it. Never writes."""

    def __init__(
        self,
        store: EmbeddingStore,
        model: ModelSettings,
        replay: ReplayBuffer,
        replays_per_event: int,
        rows: RowReader | None = None,
        *,
        with_state: bool = False,
        labels: bool = False,
    ) -> None:
        """replays_per_event: of all passes together. rows: where rows are read, if not from `store`.

        with_state: rows come with their optimizer's state. labels: negatives are learned as such.
        """
        self._store, self._model = store, model
        self._rows: RowReader = store if rows is None else rows
        self._replay, self._replays_per_event, self._with_state = replay, replays_per_event, with_state
        self._labels = labels
        self._schema = model.feature_schema
        self._of_requests = self._schema.has(REQUEST)
        self._features = FeatureReader(store, self._schema, with_state=with_state) if self._schema else None
        self._transitions = StoredTransitions(store)

    def read(
        self,
        events: Events,
        pending_users: U64,
        pending: Entries,
        *,
        again: bool = False,
        recorded: Sequence[Recorded] = (),
    ) -> tuple[Examples, Past]:
        """Examples of `events` plus replays, and the events' past.

        pending_users (m,), pending (m,): users and entries of earlier positives that have not been applied yet.
        recorded: features that have not been applied, those of `events` included.
        `again`, for events that were read before: rows are the store's, without the events' own gradients. Raises
        StoreUnavailable.
        """
        rows: RowReader = self._store if again else self._rows
        replayed = self._replay.draw(self._replays_per_event * len(events))
        named = numbered(np.concatenate([events.user_key, replayed.user]))
        users, numbers = named.keys, named.numbers
        own: Rows | None = None
        if self._model.user_id_vector:
            histories, own = rows.histories_and_rows("history", "user", users, with_state=self._with_state)
        else:
            histories = self._store.histories("history", users)
        is_positive = events.label > 0
        fresh = _by_user(
            len(users),
            np.concatenate([named.find(pending_users), numbers[: len(events)][is_positive]]),
            np.concatenate([pending, positives(events)]),
        )
        past = self._past(events, histories, fresh, numbers[: len(events)])
        seen_offsets, seen = _everything(past.lists)

        joined_recent = np.concatenate([past.recent, replayed.recent])
        lengths = np.concatenate([past.lengths, replayed.lengths])
        targets = np.concatenate([events.item_key, replayed.item])
        past_items = np.empty(lengths.sum(), np.uint64)
        joined(joined_recent, lengths, past_items)
        index = numbered(np.concatenate([targets, past_items]))
        item_keys, item_numbers = index.keys, index.numbers
        items = rows.lookup("item", item_keys, with_ids=False, with_state=self._with_state)
        # A history may name an item that was evicted or forgotten; one whose first events are in our hands is not
        # missing.
        alive = items.found.copy()
        alive[item_numbers[: len(events)]] = True
        if len(pending):
            alive |= np.isin(item_keys, pending["item"])
        known_users = histories.found | (np.diff(fresh[0]) > 0)
        is_column = np.ones(len(targets), bool)
        is_column[len(events) :] = alive[item_numbers[len(events) : len(targets)]] & known_users[numbers[len(events) :]]
        recent = np.empty(joined_recent.shape, np.int64)
        laid_out(item_numbers[len(targets) :], alive, lengths, recent)

        learned = is_positive | self._labels
        is_row = np.concatenate([learned, is_column[len(events) :]])
        features: ExampleFeatures | None = None
        if self._features is not None:
            features = self._features.read(
                rows, events, replayed, (item_keys, items.vectors), (users, numbers), recorded
            )
        if own is None:
            has_something = (recent >= 0).any(axis=1)
            is_row &= has_something if features is None else has_something | features.users.filled
        examples = Examples(
            fresh=len(events),
            items=items,
            item_keys=item_keys,
            target=item_numbers[: len(targets)],
            recent=recent,
            length=np.concatenate([past.ever, replayed.ever]),
            is_row=is_row,
            is_column=is_column,
            label=np.concatenate([is_positive.astype(np.float32), np.ones(len(replayed.item), np.float32)]),
            weight=np.concatenate([events.weight, np.ones(len(replayed.item), np.float32)]),
            seen_start=seen_offsets[numbers],
            seen_stop=seen_offsets[numbers + 1],
            seen=index.find(seen),
            user_keys=users if own is not None else users[:0],
            users=own,
            user=numbers if own is not None else np.full(len(targets), -1, np.int64),
            positive_weight=float(events.weight[is_positive].sum()),
            features=features,
            after=None if past.after is None else _numbered(past.after, index),
        )
        return examples, past

    def keep(self, events: Events, past: Past) -> None:
        """Offer the positives among events to the replay buffer, once they were learned."""
        if not self._replays_per_event:
            return
        rows = events.label > 0
        request = None
        if self._of_requests and events.features is not None:
            request = events.features.of_side(self._schema, REQUEST).take(np.flatnonzero(rows))
        self._replay.add(
            events.user_key[rows], events.item_key[rows], past.recent[rows], past.lengths[rows], past.ever[rows],
            request,
        )  # fmt: skip

    def _past(self, events: Events, histories: Histories, fresh: tuple[I64, Entries], user: I64) -> Past:
        n = len(events)
        stored_known, fresh_known = np.empty(n, np.int64), np.empty(n, np.int64)
        lists = (histories.offsets, histories.entries, *fresh)
        known_before(*lists, user, events.time_ms, events.partition, events.place, stored_known, fresh_known)
        recent, lengths = np.zeros((n, self._model.history_length), np.uint64), np.zeros(n, np.int64)
        times = np.zeros((n, min(REACH, self._model.history_length)), np.int64)
        newest_known(*lists, user, stored_known, fresh_known, recent, lengths, times)
        ever = np.empty(n, np.int64)
        ever_known(*lists, user, stored_known, fresh_known, ever)
        near = near_weights(recent, lengths, times)
        after = self._transitions.after(recent, near) if self._model.successors else None
        return Past(recent, lengths, ever, user, lists, stored_known, fresh_known, near, after)


def _numbered(after: Followers, index: Numbered) -> After:
    numbers = index.find(after.keys)
    here = numbers >= 0
    bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(here)])[after.offsets]
    return After(bounds, numbers[here], after.direct[here], after.near[here])


def _everything(lists: Lists) -> tuple[I64, U64]:
    """All that is known of each user now: an example must not push away what its user came to like later, in the same
    micro-batch or since a replay's own time. That is for learning: what an event is predicted from is its `Past`."""
    stored, _, fresh, _ = lists
    return _seen(lists, np.arange(len(stored) - 1), np.diff(stored), np.diff(fresh))


def _seen(lists: Lists, user: I64, stored_known: I64, fresh_known: I64) -> tuple[I64, U64]:
    offsets = np.zeros(len(user) + 1, np.int64)
    np.cumsum(stored_known + fresh_known, out=offsets[1:])
    seen = np.empty(offsets[-1], np.uint64)
    seen_before(*lists, user, stored_known, fresh_known, offsets, seen)
    return offsets, seen


def _by_user(users: int, number: I64, entries: Entries) -> tuple[I64, Entries]:
    """(offsets (users + 1,), entries grouped by user, each user's oldest first); entries of number -1 are dropped."""
    if len(number) and number.min() < 0:
        keep = np.flatnonzero(number >= 0)
        number, entries = number[keep], entries[keep]
    order, offsets = grouped(number, users)
    if not in_order(offsets, order, entries["time_ms"], entries["partition"], entries["place"]):
        # rare: events mostly come as they happened
        order = np.lexsort((entries["place"], entries["partition"], entries["time_ms"], number))
    return offsets, np.take(entries, order)
