"""How each fault is done to the cluster."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.chaos.cluster import Cluster
from tests.chaos.plan import SESSION_TIMEOUT_MS
from tests.chaos.proxy import Link
from tests.chaos.schedule import Fault
from tests.chaos.watch import Watch


class Injector:
    """Does faults, each on a thread of its own; two never meet at the same server or trainer."""

    def __init__(self, cluster: Cluster, watch: Watch, log: Path) -> None:
        self._cluster, self._watch, self._log = cluster, watch, log
        self._began_s = time.monotonic()
        names = ["store", "broker", "replication", *(f"trainer {n}" for n in range(len(cluster.trainers)))]
        self._locks = {name: threading.Lock() for name in names}
        self._threads: list[threading.Thread] = []
        self.errors: list[str] = []

    def begin(self, fault: Fault) -> None:
        """Do it in the background."""
        thread = threading.Thread(target=self._do, args=(fault,), name=f"fault {fault.number}", daemon=True)
        self._threads.append(thread)
        thread.start()

    @property
    def under_way(self) -> int:
        """Faults that are being done."""
        return sum(thread.is_alive() for thread in self._threads)

    def finish(self) -> None:
        """Wait for all that have begun."""
        for thread in self._threads:
            thread.join()

    def _do(self, fault: Fault) -> None:
        try:
            self._kinds()[fault.kind](fault)
        except (AssertionError, OSError, TimeoutError) as error:
            self.errors.append(f"fault {fault.number} {fault.kind} could not be done: {error!r}")
            self._note(fault, f"could not be done: {error!r}")

    def _kinds(self) -> dict[str, Callable[[Fault], None]]:
        return {
            "kill_trainer": self._kill_trainer,
            "pause_trainer": self._pause_trainer,
            "kill_store": self._kill_store,
            "promote_stale_replica": self._promote_stale_replica,
            "promote_with_old_master_alive": self._promote_with_old_master_alive,
            "cut_store": lambda fault: self._disturb(fault, self._cluster.store_links, Link.cut),
            "freeze_store": lambda fault: self._disturb(fault, self._cluster.store_links, Link.freeze),
            "kill_broker": self._kill_broker,
            "cut_broker": lambda fault: self._disturb(fault, self._cluster.broker_links, Link.cut),
            "freeze_broker": lambda fault: self._disturb(fault, self._cluster.broker_links, Link.freeze),
        }

    def _kill_trainer(self, fault: Fault) -> None:
        trainer = self._cluster.trainers[fault.trainer]
        with self._locks[f"trainer {fault.trainer}"]:
            trainer.kill()
            self._struck(fault)
            trainer.start()

    def _pause_trainer(self, fault: Fault) -> None:
        trainer = self._cluster.trainers[fault.trainer]
        with self._locks[f"trainer {fault.trainer}"]:
            trainer.pause()
            self._struck(fault)
            time.sleep(SESSION_TIMEOUT_MS / 1000 + fault.hold_s)
            trainer.resume()
        self._note(fault, "resumed")

    def _kill_store(self, fault: Fault) -> None:
        with self._locks["store"]:
            self._cluster.pair.kill_master()
            self._struck(fault)
            self._cluster.pair.restart_master()

    def _promote_stale_replica(self, fault: Fault) -> None:
        pair = self._cluster.pair
        with self._locks["store"]:
            pair.await_in_step()
            pair.replication.cut()
            time.sleep(fault.hold_s)
            pair.kill_master()
            self._struck(fault)
            pair.promote()

    def _promote_with_old_master_alive(self, fault: Fault) -> None:
        pair = self._cluster.pair
        with self._locks["store"]:
            pair.await_in_step()
            pair.replication.cut()
            time.sleep(fault.hold_s / 2)
            pair.promote_beside_the_old(lambda: time.sleep(fault.hold_s / 2))
            self._struck(fault)

    def _kill_broker(self, fault: Fault) -> None:
        broker = self._cluster.broker
        with self._locks["broker"]:
            broker.kill()
            self._struck(fault)
            broker.launch()
            broker.await_answer()

    def _disturb(self, fault: Fault, links: Sequence[Link], how: Callable[[Link], None]) -> None:
        chosen = links if fault.trainer < 0 else [links[fault.trainer]]
        for link in chosen:
            how(link)
        self._note(fault, "began")
        time.sleep(fault.hold_s)
        for link in chosen:
            link.heal()
        self._struck(fault)

    def _struck(self, fault: Fault) -> None:
        """From now on the system may recover."""
        self._watch.measure(fault)
        self._note(fault, "measured from here")

    def _note(self, fault: Fault, what: str) -> None:
        line = {
            "at_s": round(time.monotonic() - self._began_s, 3),
            "unix_s": round(time.time(), 3),
            "fault": fault.number,
            "kind": fault.kind,
            "trainer": fault.trainer,
            "hold_s": fault.hold_s,
            "what": what,
        }
        with self._log.open("a", encoding="utf-8") as log:
            log.write(json.dumps(line) + "\n")
