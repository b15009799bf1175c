"""The model's published specification: what trainer and serving must agree on, passed through the store."""

from __future__ import annotations

from typing import Literal

import msgspec
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from embedding_store.features import RECORD_BYTES, Feature, check_features, schema_of
from embedding_store.regularization import L2, Regularization, check_learning
from embedding_store.schedules import Constant, Schedule
from embedding_store.spec import Adagrad, Add, Optimizer, TableSpec
from native.features import ITEM, USER, FeatureSchema


class ModelSettings(BaseModel):
    """`[model]` of towline.toml: a two-tower model over tables `item`, `history`, `dense`; on demand `user`, `next`,
    `feature` and records of features.

    An item's row is cut evenly among the `clocks`. User: for each clock, the mean of that part of the rows of the last
    `history_length` items, weighted by recency^k at first (k = 0 the newest) and by learned position weights then;
    scaled by a learned factor per clock and bucket of history length; plus the user's own id vector if
    `user_id_vector`. Score: dot product + a · log of decayed popularity, a learned per bucket; with `successors`,
    + g · log evidence of what came next after the user's newest item + h · the same of what came a few places after his
    newest ones, g and h learned per bucket. Without `learned_gates` position weights, factors (1), a
    (`popularity_weight`), g and h (`transition_weight`) stay as they begin. Item and
    user rows learn by `optimizer`, `schedule`, `regularization` and `clip_norm`, in the store. With `dense_layers` both
    sides pass through a ReLU network of those widths first. `cosine` divides both outputs by their lengths,
    `temperature` the user's. Rows of declared `features` are added to an item's row wherever that is used, and to the
    user's vector.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    dim: int = Field(128, ge=2, le=1024)
    history_length: int = Field(20, ge=1, le=256, description="newest positives a user vector is made of")
    seen_length: int = Field(1024, ge=1, le=4096, description="newest positives kept per user: what exclude_seen knows")
    clocks: tuple[float, ...] = Field(
        (0.9, 0.6), description="recency of each clock, above 0 and at most 1: what a place in the history weighs"
    )
    learned_gates: bool = Field(True, description="position weights, scales and popularity weights are learned")
    user_id_vector: bool = False
    dense_layers: tuple[int, ...] = ()
    similarity: Literal["dot", "cosine"] = Field("dot", description="of a user's and an item's vector")
    temperature: float = Field(
        1.0, ge=0.001, le=1000, allow_inf_nan=False, description="similarity is divided by it; 0.05 to 0.2 with cosine"
    )
    popularity_weight: float = Field(0.7, ge=0, le=10, description="of log decayed popularity, at first")
    popularity_floor: float = Field(
        0.01, gt=0, le=1, allow_inf_nan=False, description="decayed popularity counts as no less: in positive events"
    )
    popularity_half_life: int = Field(1000, ge=1, description="events after which an item's popularity has halved")
    successors: int = Field(
        0,
        ge=0,
        le=1024,
        description="newest transitions kept per item: what its users liked next, or soon after; 0: none",
    )
    transition_weight: float = Field(
        0.5, ge=0, le=10, allow_inf_nan=False, description="of log evidence from transitions, at first"
    )
    initial_std: float = Field(0.03, gt=0, le=1)
    optimizer: Optimizer = Field(default_factory=Adagrad)
    schedule: Schedule = Field(default_factory=Constant)
    step_events: int = Field(1000, ge=1, le=10**9, description="events of one step: the unit of schedule and decay")
    regularization: Regularization = Field(default_factory=lambda: L2(l2=0.5))
    clip_norm: float = Field(
        0.0, ge=0, le=1e15, allow_inf_nan=False, description="longest gradient of a row, L2 norm; 0: as it comes"
    )
    item_admit_after: int = Field(0, ge=0, lt=2**31, description="events after which an item gets a row; 0: at once")
    item_max_rows: int = Field(0, ge=0, description="above it the least recently updated items go; 0: no limit")
    item_ttl_s: float = Field(0.0, ge=0, le=1e10, description="an item not updated for so long expires; 0: never")
    user_max_rows: int = Field(0, ge=0, description="above it the least recently active users go; 0: no limit")
    user_ttl_s: float = Field(0.0, ge=0, le=1e10, description="a user not active for so long expires; 0: never")
    remember_events: int = Field(
        100_000_000, ge=1, lt=2**62, description="events for which a forgotten or evicted id is told from a new one"
    )
    shards: int = Field(2, ge=1, le=4096, description="per table; fixed once the tables exist")
    seed: int = Field(7, ge=0, lt=2**63)
    features: tuple[Feature, ...] = Field((), description="of items, users and requests; at most 32")

    @model_validator(mode="after")
    def _keeps_what_it_pools(self) -> ModelSettings:
        if self.seen_length < self.history_length:
            raise ValueError(f"seen_length {self.seen_length} is below history_length {self.history_length}")
        return self

    @model_validator(mode="after")
    def _has_whole_parts(self) -> ModelSettings:
        if self.dim % len(self.clocks):
            raise ValueError(f"dim {self.dim} can't be cut evenly among {len(self.clocks)} clocks")
        return self

    @model_validator(mode="after")
    def _lives(self) -> ModelSettings:
        for name in ("item_max_rows", "user_max_rows"):
            if 0 < getattr(self, name) < self.shards:
                raise ValueError(f"{name} {getattr(self, name)} is below one per shard, of {self.shards}")
        return self

    @model_validator(mode="after")
    def _learns(self) -> ModelSettings:
        check_learning(self.optimizer, self.regularization, self.schedule, self.clip_norm)
        return self

    @field_validator("features")
    @classmethod
    def _features_fit(cls, features: tuple[Feature, ...]) -> tuple[Feature, ...]:
        check_features(features)
        return features

    @field_validator("clocks")
    @classmethod
    def _clocks_tick(cls, clocks: tuple[float, ...]) -> tuple[float, ...]:
        if not 1 <= len(clocks) <= 8 or not all(0 < recency <= 1 for recency in clocks):
            raise ValueError(f"clocks must be 1 to 8 recencies above 0 and at most 1, got {list(clocks)}")
        return clocks

    @field_validator("dense_layers")
    @classmethod
    def _layers_have_a_width(cls, widths: tuple[int, ...]) -> tuple[int, ...]:
        if not all(1 <= width <= 4096 for width in widths):
            raise ValueError(f"each of dense_layers must be 1 to 4096 wide, got {list(widths)}")
        return widths

    @model_validator(mode="after")
    def _has_a_length(self) -> ModelSettings:
        if self.similarity == "cosine" and self.output_dim < 2:
            raise ValueError("similarity = 'cosine' of vectors with one dimension is 1 or −1: use dot")
        return self

    @property
    def has_dense(self) -> bool:
        """Whether anything is learned besides rows."""
        return self.learned_gates or bool(self.dense_layers)

    @property
    def feature_schema(self) -> FeatureSchema:
        """The declared features, compiled for kernels."""
        return schema_of(self.features)

    @property
    def output_dim(self) -> int:
        """Dimension of both towers' outputs."""
        return self.dense_layers[-1] if self.dense_layers else self.dim

    def tables(self) -> dict[str, TableSpec]:
        """Declarations of the tables this model lives in."""
        specs = {
            "item": self._vectors("item", self.seed, self.item_max_rows, self.item_ttl_s, self.item_admit_after),
            "history": TableSpec(
                name="history",
                kind="sequence",
                length=self.seen_length,
                shards=self.shards,
                popularity_half_life=self.popularity_half_life,
                max_rows=self.user_max_rows or None,
                ttl_s=self.user_ttl_s or None,
                remember_events=self.remember_events,
            ),
        }
        if self.successors:
            specs["next"] = TableSpec(
                name="next",
                kind="sequence",
                length=self.successors,
                shards=self.shards,
                popularity_half_life=self.popularity_half_life,
                max_rows=self.item_max_rows or None,
                ttl_s=self.item_ttl_s or None,
                remember_events=self.remember_events,
            )
        if self.user_id_vector:
            specs["user"] = self._vectors("user", self.seed + 1, self.user_max_rows, self.user_ttl_s)
        if self.features:
            # Rows begin at 0: a value that nothing is known of adds nothing, in training as in serving.
            specs["feature"] = self._vectors("feature", self.seed, 0, 0.0).model_copy(update={"initial_std": 0.0})
            schema = self.feature_schema
            if schema.has(ITEM):
                specs["item_features"] = self._records("item_features", 0, 0.0)
            if schema.has(USER):
                specs["user_features"] = self._records("user_features", self.user_max_rows, self.user_ttl_s)
        if self.has_dense:
            # Parameters are a pure function of the seed plus this table's sum of deltas: no worker has to be first.
            specs["dense"] = TableSpec(name="dense", kind="dense", dim=64, optimizer=Add(), shards=1)
        return specs

    def _vectors(self, name: str, seed: int, max_rows: int, ttl_s: float, admit_after: int = 0) -> TableSpec:
        return TableSpec(
            name=name,
            kind="embedding",
            dim=self.dim,
            optimizer=self.optimizer,
            schedule=self.schedule,
            step_events=self.step_events,
            regularization=self.regularization,
            clip_norm=self.clip_norm,
            initial_std=self.initial_std,
            seed=seed,
            shards=self.shards,
            popularity_half_life=self.popularity_half_life,
            admit_after=admit_after,
            max_rows=max_rows or None,
            ttl_s=ttl_s or None,
            remember_events=self.remember_events,
        )

    def _records(self, name: str, max_rows: int, ttl_s: float) -> TableSpec:
        return TableSpec(
            name=name,
            kind="record",
            length=RECORD_BYTES,
            shards=self.shards,
            popularity_half_life=self.popularity_half_life,
            max_rows=max_rows or None,
            ttl_s=ttl_s or None,
            remember_events=self.remember_events,
        )

    def document(self) -> bytes:
        """JSON for `EmbeddingStore.publish_model`."""
        return msgspec.json.encode(self.model_dump(mode="json"))

    @classmethod
    def from_document(cls, document: bytes) -> ModelSettings:
        """Inverse of `document`; what an older release had no setting for is as it was then: the default.

        Raises pydantic.ValidationError on the document of a newer one.
        """
        return cls.model_validate(msgspec.json.decode(document))
