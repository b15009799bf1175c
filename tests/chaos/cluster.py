"""Everything that runs: broker, Redis pair, trainers, and the network between them."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from infra.config import TowlineConfig
from ingest.kafka_topics import prepare_topics
from tests.chaos.broker import Broker
from tests.chaos.pair import RedisPair
from tests.chaos.plan import Plan
from tests.chaos.proxy import HOST, Network
from tests.chaos.trainers import Trainer


class Cluster:
    """Started as a whole, stopped as a whole."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.network = Network()
        self.broker_links = [self.network.link() for _ in range(plan.trainers)]
        self.broker = Broker(plan.folder, self.broker_links)
        self.pair = RedisPair(self.network, plan.folder / "redis", plan.backend)
        self.trainers: list[Trainer] = []

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def _start(self) -> None:
        self.broker.prepare()
        self.broker.launch()
        self.pair.start()
        self.store_links = [self.pair.door() for _ in range(self.plan.trainers)]
        own_door = self.pair.door()
        self.config: TowlineConfig = self.plan.config(self.broker.address, _url(own_door.port), "nobody")
        """Past everything that is cut or frozen."""
        self.broker.await_answer()
        self.topic_id = prepare_topics(self.config.kafka).identity
        for number, (store, broker) in enumerate(zip(self.store_links, self.broker_links, strict=True)):
            config = self.plan.config(f"{HOST}:{broker.port}", _url(store.port), str(number))
            trainer = Trainer(config, self.plan.model, self.plan.folder / f"trainer-{number}.log")
            trainer.start()
            self.trainers.append(trainer)

    def heal(self) -> None:
        """Whatever is cut, frozen or stopped goes on."""
        for link in (*self.store_links, *self.broker_links, self.pair.replication):
            link.heal()
        for trainer in self.trainers:
            trainer.resume()

    def _stop(self) -> None:
        for trainer in self.trainers:
            trainer.kill()
        self.pair.stop()
        self.broker.stop()
        self.network.close()


def _url(port: int) -> str:
    return f"redis://{HOST}:{port}/0"
