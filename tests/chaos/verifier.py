"""The store against the log of the topic: every event in every row exactly once.

Without eviction a row holds all events of its id. With it, a row holds those since it was last made, and these are the
last ones of each partition, as partitions are applied in order: of a user, whose events are all in one partition, the
last `count`; of an item in the linear model the row itself tells how many of each partition it has learned, up to
`item_admit_after` - 1 fewer than it has counted. So what must be in a row is known exactly here too.

Of each id's features the newest word is kept, by event time: where its record may be evicted, the newest since it was
last made.

Of the table of transitions and of the features' rows offsets, clocks and limits are checked, not rows: what came next
after an item is read from a history as it is when the event is learned, and that of an event learned again may know
later ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from embedding_store.contract import ENTRY, F32, EmbeddingStore, Source
from embedding_store.model import ModelSettings
from embedding_store.transitions import TABLE as TRANSITIONS
from tests.chaos.linear import PARTITIONS, effect
from tests.chaos.topic_log import Told, TopicLog
from tests.chaos.verdict import Verdict

Events = npt.NDArray[np.void]
_SIDES = {"item": "item", "user": "user", "history": "user"}
_RECORDS = {"item_features": "item", "user_features": "user"}
UNCHECKED = (TRANSITIONS, "feature")
"""Tables whose rows do not follow from the log."""
_VANISHING = 1e-20
"""Initial values of the linear model are below, effects far above."""


@dataclass(frozen=True)
class Verifier:
    """Of one store at rest. linear: its trainers' gradients were those of `tests.chaos.linear`."""

    store: EmbeddingStore
    model: ModelSettings
    log: TopicLog
    topic_id: str
    linear: bool
    eviction: bool

    def verify(self) -> Verdict:
        """All of it."""
        verdict = Verdict()
        by_key = {side: _by_key(self.log.events, side) for side in ("item", "user")}
        for table in self.model.tables():
            self._check_shards(verdict, table)
            if table in UNCHECKED:
                continue
            if table in _RECORDS:
                self._check_records(verdict, table, self.log.told[_RECORDS[table]])
                continue
            side = _SIDES[table]
            stored = set(self.store.changes(table, None).keys.tolist())
            if not self.eviction:
                for key in stored ^ by_key[side].keys():
                    found = "is stored, and had no event" if key in stored else "had events, and is not stored"
                    verdict.wrong("rows", f"{table} {self._named(key)} {found}")
            keys = np.array(sorted(stored & by_key[side].keys()), np.uint64)
            if table == "history":
                self._check_histories(verdict, keys, by_key[side])
            else:
                self._check_rows(verdict, table, keys, by_key[side])
            if not self.eviction:
                for key in by_key[side].keys() - stored:
                    verdict.lost += len(by_key[side][key])
        return verdict

    def _check_shards(self, verdict: Verdict, table: str) -> None:
        rows = 0
        for shard, status in enumerate(self.store.status(table)):
            where = f"{table} shard {shard}"
            stored = {p: status.offsets.get(Source(self.topic_id, p)) for p in self.log.ends}
            if stored != dict(self.log.ends):
                verdict.wrong("offsets", f"{where} stands at {stored}, the topic ends at {dict(self.log.ends)}")
            if status.clock != len(self.log.events):
                verdict.wrong("clocks", f"{where}: clock {status.clock}, usable events {len(self.log.events)}")
            rows += status.rows
            verdict.removed += status.evicted + status.expired
        limit = self.model.tables()[table].max_rows
        if limit is not None and rows > limit:
            verdict.wrong("limits", f"{table} has {rows} rows, max_rows is {limit}")

    def _check_rows(
        self, verdict: Verdict, table: str, keys: npt.NDArray[np.uint64], events: Mapping[int, Events]
    ) -> None:
        rows = self.store.lookup(table, keys)
        other = "user" if table == "item" else "item"
        for i, key in enumerate(keys.tolist()):
            name, own = f"{table} {self._named(key)}", events[key]
            if rows.ids.at(i) != self.log.ids[key]:
                verdict.wrong("ids", f"{name} has id {rows.ids.at(i)!r}")
            count = int(rows.count[i])
            if not self.eviction:
                verdict.miscounted("counts", len(own), count, name)
            elif table == "user" or not self.linear:
                verdict.miscounted("counts", min(count, len(own)), count, name)
                own = own[max(0, len(own) - count) :]
            else:
                own = self._since_made(verdict, name, own, rows.vectors[i], count)
            if self.linear:
                expected = effect(own[other], own["weight"]).sum(axis=0, dtype=np.float64).astype(np.float32)
                self._compare_vectors(verdict, name, expected, rows.vectors[i])

    def _since_made(self, verdict: Verdict, name: str, own: Events, vector: F32, count: int) -> Events:
        """An item's events since its row was made, by what the row says it learned of each partition."""
        learned = np.rint(vector[:PARTITIONS]).astype(np.int64)
        parts = [own[own["partition"] == p] for p in range(PARTITIONS)]
        for partition, part in enumerate(parts):
            there = int(learned[partition])
            verdict.miscounted("counts", min(len(part), there), there, f"{name} of partition {partition}")
        waited = count - int(learned.sum())
        most = max(0, self.model.item_admit_after - 1)
        verdict.miscounted("counts", count - min(max(waited, 0), most), int(learned.sum()), f"{name}, counted {count}")
        return np.concatenate([p[max(0, len(p) - n) :] for p, n in zip(parts, learned.tolist(), strict=True)])

    def _check_histories(self, verdict: Verdict, keys: npt.NDArray[np.uint64], events: Mapping[int, Events]) -> None:
        histories = self.store.histories("history", keys)
        for i, key in enumerate(keys.tolist()):
            name, own = f"history {self._named(key)}", events[key]
            count = int(histories.count[i])
            expected_count = min(count, len(own)) if self.eviction else len(own)
            verdict.miscounted("counts", expected_count, count, name)
            if self.eviction:
                own = own[max(0, len(own) - count) :]
            stored = histories.entries[histories.offsets[i] : histories.offsets[i + 1]]
            expected = sequence(own, self.model.seen_length)
            if stored.tobytes() != expected.tobytes():
                there, due = set(stored.tolist()), set(expected.tolist())
                verdict.wrong(
                    "sequences", f"{name}, {count} events: lacks {sorted(due - there)}, has {sorted(there - due)} more"
                )
                if self.eviction:  # here the sequence is the witness
                    verdict.lost += len(due - there)
                    verdict.duplicated += len(there - due)

    def _check_records(self, verdict: Verdict, table: str, told: Mapping[int, list[Told]]) -> None:
        stored = set(self.store.changes(table, None).keys.tolist())
        evicts = self.model.tables()[table].max_rows is not None
        for key in stored - told.keys():
            verdict.wrong("records", f"{table} {self._named(key)} is stored, and nobody told of it")
        for key in () if evicts else told.keys() - stored:
            verdict.wrong("records", f"{table} {self._named(key)} was told of, and is not stored")
        keys = np.array(sorted(stored & told.keys()), np.uint64)
        values = self.store.values(table, keys)
        for i, key in enumerate(keys.tolist()):
            order = values.orders[i]
            place = (int(order["time_ms"]), int(order["partition"]), int(order["place"]))
            found = Told(place, values.values.at(i))
            # as applied: all of a partition in order, and where it matters, with eviction, a user's are of one
            own = sorted(told[key], key=lambda t: t.order[1:])
            possible = {max(own[start:]) for start in (range(len(own)) if evicts else (0,))}
            if found not in possible:
                verdict.wrong("records", f"{table} {self._named(key)} is {found}, and should be one of {possible}")
            if values.ids.at(i) != self.log.ids[key]:
                verdict.wrong("ids", f"{table} {self._named(key)} has id {values.ids.at(i)!r}")

    def _compare_vectors(self, verdict: Verdict, name: str, expected: F32, stored: F32) -> None:
        settled = np.where(np.abs(stored) < _VANISHING, np.float32(0.0), stored)
        if settled.tobytes() != expected.tobytes():
            verdict.wrong("weights", f"{name} is {stored.tolist()}, its events add up to {expected.tolist()}")

    def _named(self, key: int) -> str:
        return repr(self.log.ids.get(key, key))


def sequence(events: Events, length: int) -> npt.NDArray[np.void]:
    """The stored form of a user's history: the largest `length` positives by (time, partition, place)."""
    positive = np.sort(events[events["label"] > 0], order=("time_ms", "partition", "place"))[-length:]
    entries = np.zeros(len(positive), ENTRY)
    for name in ("time_ms", "place", "item", "partition", "weight"):
        entries[name] = positive[name]
    return entries


def compare_with_single(store: EmbeddingStore, single: EmbeddingStore, model: ModelSettings, verdict: Verdict) -> None:
    """Counts, vectors and histories of a store against those that a single worker left in its own, bit for bit."""
    for table in model.tables():
        if table in UNCHECKED:
            continue
        keys = np.sort(single.changes(table, None).keys)
        if table in _RECORDS:
            record, other = store.values(table, keys), single.values(table, keys)
            same = record.values.tolist() == other.values.tolist()
            if not same or record.orders.tobytes() != other.orders.tobytes():
                verdict.wrong("single", f"{table} differs from what a single worker leaves")
            continue
        if table == "history":
            ours, theirs = store.histories(table, keys), single.histories(table, keys)
            same = ours.entries.tobytes() == theirs.entries.tobytes()
        else:
            rows, others = store.lookup(table, keys), single.lookup(table, keys)
            differ = np.flatnonzero((rows.vectors.view(np.uint32) != others.vectors.view(np.uint32)).any(axis=1))
            for i in differ.tolist():
                verdict.wrong(
                    "weights", f"{table} key {keys[i]}: {rows.vectors[i]} is {others.vectors[i]} by one worker"
                )
            same = bool((rows.count == others.count).all())
        if not same:
            verdict.wrong("single", f"{table} differs from what a single worker leaves")


def _by_key(events: Events, side: str) -> dict[int, Events]:
    """Key → its events by (partition, place)."""
    order = np.argsort(events[side], kind="stable")
    ordered = events[order]
    keys, starts = np.unique(ordered[side], return_index=True)
    return dict(zip(keys.tolist(), np.split(ordered, starts[1:]) if len(keys) else (), strict=True))
