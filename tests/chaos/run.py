"""One run from the first fault to the verdict."""

from __future__ import annotations

import itertools
import json
import time
from dataclasses import asdict
from typing import Any

from embedding_store.open import open_store
from tests.chaos.cluster import Cluster
from tests.chaos.injection import Injector
from tests.chaos.plan import Plan
from tests.chaos.report import View, summary
from tests.chaos.schedule import faults
from tests.chaos.single import learn_alone
from tests.chaos.stream import Producer, Stream
from tests.chaos.topic_log import read_dead_letters, read_log
from tests.chaos.verdict import Verdict
from tests.chaos.verifier import Verifier, compare_with_single
from tests.chaos.waiting import until
from tests.chaos.watch import Watch

_READY_S = 120.0
_CALM_S = 15.0  # a fault that is not over after this long is overlapped by the next one
_CATCH_UP_S = 90.0
_STEP_S = 0.05


class Run:
    """Phases: begin, disturb, settle, verify."""

    def __init__(self, plan: Plan, cluster: Cluster, view: View) -> None:
        self._plan, self._cluster, self._view = plan, cluster, view
        kafka, redis, model = cluster.config.kafka, cluster.config.redis, cluster.config.model
        stream = Stream(plan.seed, plan.users, plan.items, features=plan.features)
        self._producer = Producer(kafka, stream, plan.events_per_s)
        direct = redis.model_copy(update={"timeout_s": 1.0})
        self._watch = Watch(direct, tuple(model.tables()), cluster.topic_id, self._producer)
        self._injector = Injector(cluster, self._watch, plan.folder / "faults.jsonl")

    def begin(self) -> None:
        """The stream runs and everything is applied that is sent."""
        self._producer.start()
        self._watch.start()
        until(
            lambda: self._watch.offsets and min(self._watch.offsets.values()) > 0 and self._watch.lag() < 200,
            "trainers to begin",
            _READY_S,
            self._tick,
        )

    def disturb(self) -> None:
        """Faults until the time is over or there are enough."""
        end_s = time.monotonic() + self._plan.seconds
        for fault in itertools.islice(faults(self._plan.seed, self._plan.trainers), self._plan.most_faults):
            if not fault.overlaps:
                calm_s = min(end_s, time.monotonic() + _CALM_S)
                while (self._watch.open or self._injector.under_way) and time.monotonic() < calm_s:
                    self._tick()
            next_s = time.monotonic() + fault.gap_s
            while time.monotonic() < next_s:
                self._tick()
            if time.monotonic() >= end_s:
                return
            self._injector.begin(fault)

    def settle(self) -> None:
        """Everything is whole again, and the stream is over and applied."""
        until(lambda: not self._injector.under_way, "faults that were begun to be done")
        self._injector.finish()
        self._cluster.heal()
        try:
            until(lambda: not self._watch.open, "recovery from every fault", _CATCH_UP_S, self._tick)
        except AssertionError as late:
            self._view.say(str(late))
        self._producer.stop()
        try:
            until(lambda: self._watch.lag() == 0, "everything to be applied", _CATCH_UP_S, self._tick)
        except AssertionError as late:  # the verdict tells what is missing
            self._view.say(str(late))
        for trainer in self._cluster.trainers:
            trainer.leave()
        self._watch.stop()

    def verify(self) -> tuple[Verdict, dict[str, Any]]:
        """(what is wrong, the last line)."""
        config, plan = self._cluster.config, self._plan
        log = read_log(config.kafka)
        store = open_store(config.redis)
        try:
            verdict = Verifier(
                store, config.model, log, self._cluster.topic_id, plan.model == "linear", plan.eviction
            ).verify()
            shards = {table: [asdict(status) for status in store.status(table)] for table in config.model.tables()}
            (plan.folder / "shards.json").write_text(json.dumps(_plain(shards), indent=1))
            if plan.model == "linear" and not plan.eviction and verdict.right("offsets"):
                compare_with_single(store, learn_alone(config, log), config.model, verdict)
        finally:
            store.close()
        for wrong in log.against(self._producer.sent, self._producer.acknowledged):
            verdict.wrong("log", wrong)
        for place in log.unusable - read_dead_letters(config.kafka):
            verdict.wrong("dead_letters", f"no dead letter of {place}")
        for trainer in self._cluster.trainers:
            for code in trainer.exits:
                verdict.wrong("exits", f"a trainer ended by itself with code {code}: {trainer.log}")
        for recovery in self._watch.open:
            verdict.wrong("recoveries", f"fault {recovery.fault} was never over")
        if plan.eviction and not verdict.removed:
            verdict.wrong("limits", "no row was evicted or expired: the run shows nothing")
        for error in self._injector.errors:
            self._view.say(error)
        (plan.folder / "recoveries.json").write_text(json.dumps([asdict(r) for r in self._watch.recoveries], indent=1))
        more = {"events": len(log.events), "not_done": len(self._injector.errors)}
        return verdict, summary(plan, self._watch.recoveries, verdict, more)

    def _tick(self) -> None:
        for trainer in self._cluster.trainers:
            if trainer.revive():
                self._view.say(f"a trainer ended by itself and is started again: {trainer.log}")
        self._view.show(self._watch, self._injector.under_way)
        time.sleep(_STEP_S)


def _plain(value: Any) -> Any:
    """For JSON: sources, which are keys, as text."""
    if isinstance(value, dict):
        return {key if isinstance(key, str) else str(key): _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list) else value


def run(plan: Plan) -> tuple[Verdict, dict[str, Any]]:
    """A whole run; what it leaves is in `plan.folder`."""
    plan.folder.mkdir(parents=True, exist_ok=True)
    with Cluster(plan) as cluster, View(plan) as view:
        whole = Run(plan, cluster, view)
        whole.begin()
        whole.disturb()
        whole.settle()
        verdict, last_line = whole.verify()
    (plan.folder / "report.json").write_text(json.dumps(last_line | {"found": verdict.violations}, indent=1))
    return verdict, last_line
