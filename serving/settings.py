"""How the service listens and what it accepts; validated by the composition root."""

from __future__ import annotations

import ipaddress

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator


class ServingSettings(BaseModel):
    """`[serving]` of towline.toml."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)  # inputs hold secrets

    host: str = Field(
        "127.0.0.1", min_length=1, description="address to listen on; loopback, since keys are off by default"
    )
    port: int = Field(8000, ge=0, le=65535, description="TCP port; 8000 is what people expect; 0 picks a free one")
    api_keys: tuple[SecretStr, ...] = Field(
        (), description="accepted X-API-Key values, several for rotation; required unless host is loopback"
    )
    docs_without_key: bool = Field(
        False, description="let /docs and /openapi.json through without a key: browsers can't send one with a link"
    )
    max_body_bytes: int = Field(
        4 * 2**20, ge=1024, le=2**30, description="request body cap; 4 MiB holds 4096 ids of 512 bytes with escapes"
    )
    max_batch: int = Field(4096, ge=1, le=65536, description="ids in one request: a batch of 64 floats is 1 MB raw")
    max_users: int = Field(
        64, ge=1, le=4096, description="users in one recommend:batch: each costs a scan of all items"
    )
    max_k: int = Field(1000, ge=1, le=100_000, description="items in one recommendation; re-rankers ask for hundreds")
    events: bool = Field(
        False, description="take events at POST /v1/events and produce them to [kafka] topic; needs towline[events]"
    )
    max_lag_s: float = Field(
        5.0, gt=0, description="mirror lag past which readiness fails; longer than a failover's connection errors"
    )
    max_in_flight: int = Field(1024, ge=1, description="requests at once; more are told to retry rather than queued")
    threads: int = Field(4, ge=1, le=64, description="threads for store reads and ranking; each holds a connection")
    scan_threads: int = Field(
        0,
        ge=0,
        le=64,
        description="threads of one pass over all items; 0: the processors, divided among `workers`",
    )
    max_queue: int = Field(
        64, ge=0, description="work waiting for a thread; at 1 ms a piece, the wait stays below 20 ms"
    )
    drain_s: float = Field(
        5.0,
        ge=0,
        le=600,
        description="after SIGTERM, time for load balancers to see readiness 503 before the port closes",
    )
    shutdown_s: float = Field(10.0, ge=0, le=600, description="then, time for requests in flight to finish")
    trainer_metrics: tuple[str, ...] = Field(
        (),
        description="URLs of trainers' metrics, for the dashboard's loss and hit rate; `towline up` knows its own",
    )
    workers: int = Field(
        1,
        ge=1,
        le=64,
        description="processes that answer; from 2 on (Linux) one more keeps the mirror, which they share; `threads` "
        "and the caps on what is in flight or waits are each worker's own",
    )
    mirror_folder: str = Field(
        "",
        description="where a copy of the mirror is kept, so that a restart answers at once; empty: none; `towline up` "
        "has one in [local] state_dir",
    )
    mirror_save_s: float = Field(
        60.0,
        ge=1,
        le=86400,
        description="seconds between its saves: a restart has as much of the feed to catch up with",
    )

    @field_validator("api_keys")
    @classmethod
    def _usable_keys(cls, keys: tuple[SecretStr, ...]) -> tuple[SecretStr, ...]:
        for i, key in enumerate(keys):
            value = key.get_secret_value()
            if not value or not value.isascii() or not value.isprintable() or value != value.strip():
                raise ValueError(
                    f"api_keys[{i}] must be printable ASCII without surrounding spaces: HTTP headers carry nothing else"
                )
        return keys

    @field_validator("trainer_metrics")
    @classmethod
    def _urls(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        for url in urls:
            if not url.startswith(("http://", "https://")):
                raise ValueError(f"'{url}' is not a URL: write http://HOST:PORT/metrics")
        return urls

    @model_validator(mode="after")
    def _guarded_off_loopback(self) -> ServingSettings:
        if not self.api_keys and not self.loopback:
            raise ValueError(
                f"host '{self.host}' is not loopback: set serving.api_keys, "
                "or serving.host to 127.0.0.1 to serve this machine only"
            )
        return self

    @property
    def loopback(self) -> bool:
        """Whether only this machine can connect."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False
