"""What all handlers share: settings, the live model, and how the service is doing."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np

from embedding_store import transitions
from embedding_store.contract import EmbeddingStore
from embedding_store.item_filter import ItemFilter
from embedding_store.mirror_reads import MirrorReads
from embedding_store.model import ModelSettings
from embedding_store.ranking import Ranker
from embedding_store.scanning import Scanner
from native.scan import rank_of
from serving.crew import Crew
from serving.floats import vector_json
from serving.freshness import Freshness
from serving.metrics import Metrics
from serving.offload import Offload
from serving.problems import unavailable
from serving.settings import ServingSettings

if TYPE_CHECKING:
    from serving.events import EventSink

Reason = Literal["loading", "store_down", "lag", "draining"]


def processors() -> int:
    """That this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True, slots=True, eq=False)
class Live:
    """A published model with a loaded mirror; replaced as a whole when another model is published."""

    store: EmbeddingStore
    document: bytes
    model: ModelSettings
    mirror: MirrorReads
    ranker: Ranker

    version: str  # names the published specification; equal on every server that serves it

    @classmethod
    def of(
        cls,
        store: EmbeddingStore,
        document: bytes,
        model: ModelSettings,
        mirror: MirrorReads,
        scanner: Scanner | None = None,
    ) -> Live:
        """`model`, decoded from `document`, over a mirror that is loaded. scanner: see `Ranker`."""
        ranker = Ranker(store, model, mirror, scanner=scanner)
        return cls(store, document, model, mirror, ranker, version_of(document))

    def warm_up(self, *, users: bool = True) -> None:
        """Take every path of a request once, so that no live one pays for compiling kernels. Raises StoreError.

        users: read one, too, which needs the store.
        """
        nobody = np.zeros(1, np.uint64)
        vector = self.ranker.users(nobody).vectors[0] if users else np.zeros(self.model.output_dim, np.float32)
        ranked = self.ranker.recommend(vector, exclude=nobody, k=1, only=nobody)
        self.ranker.recommend(None, exclude=nobody, k=1)
        self.ranker.recommend_many(vector[None], np.ones(1, np.float32), [nobody], [1])
        self.mirror.items(nobody)
        self.mirror.item(nobody)
        self.mirror.gathered(nobody)
        self.ranker.similar(self.mirror.items(nobody).vectors, exclude=nobody, k=1)
        self.ranker.score(vector, nobody)
        if self.model.successors:
            transitions.warm_up()
        known = self.mirror.features
        if known is not None and known.of_items:
            self.ranker.recommend(vector, exclude=nobody, k=1, wanted=ItemFilter(((0,),)))
        rank_of(ranked.scores if len(ranked.scores) else vector, 0)
        vector_json(ranked.scores)


def version_of(document: bytes) -> str:
    """A name for a published model."""
    return hashlib.sha256(document).hexdigest()[:12]


@dataclass
class Service:
    """State of one serving process. `live` is set by the thread that follows, `draining` by the server."""

    settings: ServingSettings
    live: Live | None = None
    draining: bool = False
    crash: str | None = None  # why the refreshing thread ended, if it did
    fatal: str | None = None  # why the process must exit, if it must
    freshness: Freshness = field(default_factory=Freshness)
    metrics: Metrics = field(default_factory=Metrics)
    events: EventSink | None = None  # None: events are not taken
    crew: Crew = field(default_factory=Crew)

    def __post_init__(self) -> None:
        self.offload = Offload(self.settings.threads, self.settings.max_queue, self.metrics.offload)
        self.producing = Offload(1, self.settings.max_queue)
        self.scanner = Scanner(self.settings.scan_threads or max(1, processors() // self.settings.workers))

    def require_live(self) -> Live:
        """The live model. Raises Problem 503 until there is one."""
        if self.live is None:
            raise unavailable("loading", "no model is loaded yet: the store is away, or no trainer has published one")
        return self.live

    @property
    def store_down(self) -> bool:
        """Whether the last attempt to reach the store failed: then reads aren't tried, so none waits for a timeout."""
        return self.freshness.failure is not None

    @property
    def stale(self) -> bool:
        """Whether answers may miss more than the configured lag, or can't be confirmed not to."""
        return self.store_down or self.freshness.lag_s > self.settings.max_lag_s

    def unready(self) -> list[Reason]:
        """Why no traffic should come here; empty: ready. A store that is down counts once the mirror is too old."""
        reasons: list[Reason] = []
        late = self.freshness.lag_s > self.settings.max_lag_s
        if self.live is None:
            reasons.append("loading")
        if self.store_down and (late or self.live is None):
            reasons.append("store_down")
        if late and self.live is not None:
            reasons.append("lag")
        if self.draining:
            reasons.append("draining")
        return reasons

    def close(self) -> None:
        """Wait for work in flight."""
        self.offload.close()
        self.scanner.close()
        self.producing.close()
        if self.events is not None:
            self.events.close()
