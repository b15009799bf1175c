"""Table declarations: everything the store needs to optimize a table by itself."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Kind = Literal["embedding", "sequence", "dense"]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Sgd(_Frozen):
    """w ← w − η·g."""

    kind: Literal["sgd"] = "sgd"
    learning_rate: float = Field(0.05, gt=0, le=100, allow_inf_nan=False)

    def state_dim(self, dim: int) -> int:
        """float32 values of optimizer state in a row of `dim` values."""
        return 0 * dim


class Adagrad(_Frozen):
    """s ← s + g²; w ← w − η·g/(√s + ε), element-wise (Duchi, Hazan, Singer 2011)."""

    kind: Literal["adagrad"] = "adagrad"
    learning_rate: float = Field(0.05, gt=0, le=100, allow_inf_nan=False)
    initial_accumulator: float = Field(0.1, ge=0, allow_inf_nan=False)
    epsilon: float = Field(1e-7, gt=0, allow_inf_nan=False)

    def state_dim(self, dim: int) -> int:
        """float32 values of optimizer state in a row of `dim` values."""
        return dim


class Add(_Frozen):
    """w ← w + g: the call carries deltas, and concurrent deltas add up."""

    kind: Literal["add"] = "add"

    def state_dim(self, dim: int) -> int:
        """float32 values of optimizer state in a row of `dim` values."""
        return 0 * dim


Optimizer = Annotated[Sgd | Adagrad | Add, Field(discriminator="kind")]


class TableSpec(_Frozen):
    """One table, declared once; `EmbeddingStore.create` refuses a different declaration under the same name.

    kind `embedding`: rows of `dim` float32 keyed by id. `sequence`: an id's `length` largest entries by
    (event time, partition, place). `dense`: a dense parameter, cut into rows of `dim` values keyed 0, 1, 2, …
    """

    name: str = Field(pattern=r"^[a-z][a-z0-9_]{0,31}$")
    kind: Kind = "embedding"
    dim: int = Field(0, ge=0, le=4096)
    length: int = Field(0, ge=0, le=4096)
    shards: int = Field(4, ge=1, le=4096)
    seed: int = Field(0, ge=0, lt=2**63)
    initial_std: float = Field(0.0, ge=0, le=10, allow_inf_nan=False)
    optimizer: Optimizer = Field(default_factory=Add)
    popularity_half_life: int = Field(1000, ge=1, description="events after which a row's popularity has halved")
    gap_rate: float = Field(0.05, gt=0, le=1, description="α of logQ's moving average of gaps (Yi et al. 2019, alg. 2)")

    @model_validator(mode="after")
    def _fits_kind(self) -> TableSpec:
        if self.kind == "sequence":
            if self.length < 1 or self.dim:
                raise ValueError(
                    f"sequence table '{self.name}' needs length ≥ 1 and dim 0, got {self.length}, {self.dim}"
                )
        elif self.dim < 1 or self.length:
            raise ValueError(
                f"{self.kind} table '{self.name}' needs dim ≥ 1 and length 0, got {self.dim}, {self.length}"
            )
        return self

    @property
    def state_dim(self) -> int:
        """float32 values of optimizer state per row."""
        return self.optimizer.state_dim(self.dim) if self.dim else 0
