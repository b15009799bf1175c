"""How to reach the store; validated by the composition root."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr


class RedisSettings(BaseModel):
    """`[redis]` of towline.toml. With `url` and `sentinels` both empty the local stack starts a server."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)  # inputs hold secrets

    url: str = Field(
        "", repr=False, description="redis://, rediss:// or unix:// URL of the server, or of any node of a cluster"
    )
    username: str = ""
    password: SecretStr = SecretStr("")
    cluster: bool = Field(False, description="the URL is a node of a Redis Cluster")
    sentinels: tuple[str, ...] = Field((), description="host:port of each Sentinel")
    sentinel_service: str = "mymaster"
    sentinel_password: SecretStr = SecretStr("")
    tls_ca_file: str = ""
    tls_cert_file: str = ""
    tls_key_file: str = ""
    timeout_s: float = Field(5.0, gt=0, description="of connecting and of each reply; past it the call is an error")
    backend: Literal["auto", "stock", "module"] = Field(
        "auto",
        description="auto: the one that keeps the store; for a new store the module where all servers have it loaded, "
        "else stock, which needs no module",
    )
