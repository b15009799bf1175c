"""Table declarations: everything the store needs to optimize a table by itself."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from embedding_store.frozen import Frozen
from embedding_store.optimizers import Adagrad, Adam, Add, Optimizer, RowwiseAdagrad, Sgd
from embedding_store.regularization import NoRegularization, Regularization, check_learning
from embedding_store.schedules import Constant, Schedule

__all__ = ["Adagrad", "Adam", "Add", "Kind", "Optimizer", "RowwiseAdagrad", "Sgd", "TableSpec"]

Kind = Literal["embedding", "sequence", "record", "dense"]


class TableSpec(Frozen):
    """One table, declared once; `EmbeddingStore.create` refuses a different declaration under the same name.

    kind `embedding`: rows of `dim` float32 keyed by id. `sequence`: an id's `length` largest entries by
    (event time, partition, place). `record`: one value of at most `length` bytes per id, that of the largest
    (event time, partition, place). `dense`: a dense parameter, cut into rows of `dim` values keyed 0, 1, 2, …

    Which keys have a row: `admit_after`, `ttl_s`, `max_rows`; see `embedding_store.admission` and
    `embedding_store.eviction`.
    """

    name: str = Field(pattern=r"^[a-z][a-z0-9_]{0,31}$")
    kind: Kind = "embedding"
    dim: int = Field(0, ge=0, le=4096)
    length: int = Field(0, ge=0, le=4096)
    shards: int = Field(4, ge=1, le=4096)
    seed: int = Field(0, ge=0, lt=2**63)
    initial_std: float = Field(0.0, ge=0, le=10, allow_inf_nan=False)
    optimizer: Optimizer = Field(default_factory=Add)
    schedule: Schedule = Field(default_factory=Constant)
    step_events: int = Field(1000, ge=1, le=10**9, description="events of one step: the unit of schedule and decay")
    regularization: Regularization = Field(default_factory=NoRegularization)
    clip_norm: float = Field(
        0.0, ge=0, le=1e15, allow_inf_nan=False, description="longest gradient of a row, L2 norm; 0: as it comes"
    )
    popularity_half_life: int = Field(1000, ge=1, description="events after which a row's popularity has halved")
    gap_rate: float = Field(0.05, gt=0, le=1, description="α of logQ's moving average of gaps (Yi et al. 2019, alg. 2)")
    admit_after: int = Field(0, ge=0, lt=2**31, description="own events after which a key becomes a row; 0: at once")
    max_stubs: int = Field(1_000_000, ge=1, description="keys that are counted and not admitted yet; per table")
    ttl_s: float | None = Field(None, gt=0, le=1e10, description="a row not updated for so long expires; None: never")
    max_rows: int | None = Field(None, ge=1, description="rows of the table; above it the least recently updated go")
    remember_events: int = Field(
        100_000_000, ge=1, lt=2**62, description="events for which a forgotten or evicted key is told from a new one"
    )

    @model_validator(mode="after")
    def _fits_kind(self) -> TableSpec:
        if self.kind in ("sequence", "record"):
            if self.length < 1 or self.dim:
                raise ValueError(
                    f"{self.kind} table '{self.name}' needs length ≥ 1 and dim 0, got {self.length}, {self.dim}"
                )
        elif self.dim < 1 or self.length:
            raise ValueError(
                f"{self.kind} table '{self.name}' needs dim ≥ 1 and length 0, got {self.dim}, {self.length}"
            )
        return self

    @model_validator(mode="after")
    def _lives(self) -> TableSpec:
        if self.admit_after and self.kind != "embedding":
            raise ValueError(
                f"{self.kind} table '{self.name}': admit_after is for embedding tables; what a key not yet admitted "
                "is sent would be lost here"
            )
        if self.kind == "dense" and (self.ttl_s or self.max_rows):
            raise ValueError(f"dense table '{self.name}': a parameter can't lose rows; leave ttl_s and max_rows out")
        for name in ("max_rows", "max_stubs"):
            value = getattr(self, name)
            if value is not None and value < self.shards:
                raise ValueError(f"table '{self.name}': {name} {value} is below one per shard, of {self.shards}")
        return self

    @model_validator(mode="after")
    def _learns(self) -> TableSpec:
        if self.kind in ("sequence", "record"):
            learned = {"optimizer": Add(), "schedule": Constant(), "regularization": NoRegularization(), "clip_norm": 0}
            for name, default in learned.items():
                if getattr(self, name) != default:
                    raise ValueError(
                        f"{self.kind} table '{self.name}' has no vectors to learn: leave {name} = "
                        f"{getattr(self, name)!r} out"
                    )
        try:
            check_learning(self.optimizer, self.regularization, self.schedule, self.clip_norm)
        except ValueError as e:
            raise ValueError(f"table '{self.name}': {e}") from None
        return self

    @property
    def state_dim(self) -> int:
        """float32 values of optimizer state per row."""
        return self.optimizer.state_dim(self.dim) if self.dim else 0
