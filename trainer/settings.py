"""`[trainer]` of towline.toml; validated by the composition root."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


class TrainerSettings(BaseModel):
    """How a worker learns, and how often it talks to the store.

    `apply_every` and `dense_sync_every` are the two knobs.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    apply_every: int = Field(1, ge=1, le=1024, description="micro-batches between a worker's calls to the store …")
    apply_every_ms: int = Field(
        0,
        ge=0,
        le=600_000,
        description="… or so long after the first of them was learned, whichever comes first; 0: at apply_every, and "
        "whenever the stream is quiet",
    )
    read_your_writes: bool = Field(
        False, description="lookups see what this worker has learned and not applied yet; costs a merge per micro-batch"
    )
    max_staleness_events: int = Field(
        0,
        ge=0,
        description="events that others may have applied between a gradient's read and its apply; past it the gradient "
        "is learned anew; 0: no bound",
    )
    staleness_correction: bool = Field(
        False, description="divide a gradient by its staleness in calls, where that is above 1 (Zhang et al. 2016)"
    )
    dense_sync_every: int = Field(8, ge=1, le=100_000, description="micro-batches between dense synchronizations")
    dense_merge: Literal["average", "sum"] = Field(
        "average", description="average scales a dense delta by its share of the examples since its base; sum does not"
    )
    dense_version_every_s: float = Field(
        60.0, ge=0, description="between versions of the dense parameters that `towline model rollback` knows; 0: none"
    )
    dense_learning_rate: float = Field(0.01, gt=0, le=10, description="of the worker's local Adagrad on dense layers")
    gate_learning_rate: float = Field(0.02, gt=0, le=10, description="likewise, on the gates")
    loss: Literal["softmax", "bce"] = Field(
        "softmax", description="softmax ranks positives above other items; bce (binary cross-entropy) predicts labels"
    )
    passes: int = Field(5, ge=1, le=64, description="over the events of an update, each with replays of its own")
    update_events: int = Field(
        64, ge=0, le=1_000_000, description="events of an update, of which a micro-batch may hold many; 0: all at once"
    )
    group: int = Field(
        320, ge=16, le=8192, description="examples of a softmax group: in-batch negatives stay inside it"
    )
    replay: int = Field(4, ge=0, le=64, description="past positives drawn again per new event and pass")
    replay_drop: float = Field(0.3, ge=0, lt=1, description="of a replay's history, drawn anew each time")
    row_penalty: float = Field(
        0.0,
        ge=0,
        le=1,
        description="L2 in the loss of a pass, on the rows that it touches; where updates are learned on copies",
    )
    label_smoothing: float = Field(0.1, ge=0, lt=1, description="of a row's target, spread over its columns")
    replay_capacity: int = Field(200_000, ge=1000, description="positives a worker keeps to draw from")
    guard: Literal["off", "skip", "pause", "rollback"] = Field(
        "skip",
        description="what follows where a micro-batch diverges and is counted without being learned: skip goes on; "
        "pause waits for a person; rollback restores the newest snapshot and learns all but its records again, or "
        "pauses where it can't; off: only what is not finite is left out",
    )
    guard_deviations: float = Field(
        6.0, ge=3, le=1000, description="of a micro-batch's loss or calibration from the running one that are too many"
    )
    guard_growth: float = Field(
        100.0, ge=2, le=1e9, description="times the usual longest change of a row that are too long"
    )
    guard_after: int = Field(
        5000,
        ge=100,
        le=10**9,
        description="positives looked at before anything is judged, and what the running "
        "figures are about: a sample of at most 128 a micro-batch",
    )
    guard_snapshots: str = Field(
        "", description="folder of the snapshots that rollback goes back to; the local stack names its own"
    )
    alarm_file: str = Field(
        "",
        description="where the last quarantine is noted, for `towline status`; the local stack names one; empty: none",
    )
    seed: int = Field(0, ge=0)
    evaluate_share: float = Field(0.05, ge=0, le=1, description="of positives measured before they are learned")
    evaluate_freeze_after: int = Field(
        0, ge=0, description="events after which a frozen copy of the model is kept to compare with; 0: none"
    )
    evaluate_k: int = Field(10, ge=1, le=1000)
    reconcile_every_s: float = Field(5.0, gt=0, description="between checks that no shard was rolled back")
    instance: str = Field(
        "",
        pattern=r"^[A-Za-z0-9_.-]{0,64}$",
        description="static group membership id of this worker, unique in the group: back within the session time-out, "
        "it has its partitions again without a rebalance; empty: a member like any other",
    )
    tensorboard_dir: str = Field(
        "", description="folder where live metrics are written for TensorBoard, a sub-folder per worker; empty: nowhere"
    )
    metrics_host: str = "127.0.0.1"
    metrics_port: int = Field(0, ge=0, le=65535, description="Prometheus metrics of this worker; 0 for none")

    @model_validator(mode="after")
    def _fits_the_loss(self) -> TrainerSettings:
        if self.loss == "bce" and self.replay:
            raise ValueError(
                f"loss = 'bce' with replay = {self.replay}: only positives are kept to be replayed, and would make "
                "every event look like one; set replay = 0"
            )
        if self.loss == "bce" and self.label_smoothing:
            raise ValueError(
                f"loss = 'bce' with label_smoothing = {self.label_smoothing}: what is predicted would no longer be the "
                "share that is observed; set label_smoothing = 0"
            )
        return self

    @property
    def deltas(self) -> bool:
        """Whether several updates are learned on copies, and the store is told what they changed."""
        return self.passes > 1 or self.update_events > 0
