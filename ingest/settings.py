"""How to reach Kafka and what to accept from it; validated by the composition root."""

from __future__ import annotations

from typing import Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, SecretStr

Client = Literal["kafka-python", "librdkafka"]
CLIENTS: tuple[Client, ...] = get_args(Client)


class KafkaSettings(BaseModel):
    """`[kafka]` of towline.toml. With `bootstrap_servers` empty the local stack starts a broker."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    bootstrap_servers: str = Field("", description="host:port, several separated by commas")
    client: Client = Field(
        "kafka-python",
        description="what a trainer reads with; librdkafka needs `pip install 'towline[librdkafka]'`",
    )
    topic: str = Field("events", min_length=1)
    dead_letter_topic: str = Field("events.dead", min_length=1)
    topic_epoch: str = Field(
        "0", min_length=1, description="tells incarnations of a topic apart on brokers without topic ids: raise by hand"
    )
    group: str = Field("towline", min_length=1)
    partitions: int = Field(1, ge=1, description="of topics that Towline creates")
    replication_factor: int = Field(1, ge=1, description="of topics that Towline creates")
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    sasl_mechanism: Literal["", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = ""
    sasl_username: str = ""
    sasl_password: SecretStr = SecretStr("")
    ssl_ca_file: str = ""
    ssl_cert_file: str = ""
    ssl_key_file: str = ""
    ssl_check_hostname: bool = True
    session_timeout_ms: int = Field(
        10_000, ge=1000, description="a worker that is silent for so long loses its partitions to the others"
    )
    max_poll_interval_ms: int = Field(300_000, ge=1000)
    request_timeout_ms: int = Field(40_000, ge=1000)


class IngestSettings(BaseModel):
    """`[ingest]` of towline.toml: micro-batches and the door."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    batch_events: int = Field(1024, ge=1, le=1_000_000, description="a micro-batch closes at so many events …")
    max_batch_events: int = Field(
        0,
        ge=0,
        le=1_000_000,
        description="what waits at the broker's client by then is taken along, up to so many: a stream that is behind "
        "is learned in larger micro-batches; 0: no more than batch_events",
    )
    batch_wait_ms: int = Field(20, ge=0, le=60_000, description="… or so long after its first record")
    codec: Literal["json", "msgpack"] = Field("json", description="format of record values")
    max_record_bytes: int = Field(1 << 20, ge=1024, description="a larger record goes to the dead letters")
    max_id_bytes: int = Field(512, ge=1, le=512)
    max_weight: float = Field(1000.0, gt=0, le=1e9)
    max_future_s: float = Field(86_400.0, ge=0, description="how far ahead of its record's timestamp an event may lie")
    stall_timeout_s: float = Field(
        30.0, gt=0, description="the consumer is made anew when a partition has records but gave none for so long"
    )
    on_lost_offsets: Literal["continue", "stop"] = Field(
        "continue",
        description="records are gone before they were learned (retention, a log that was cut): go on with what is "
        "there, or stop for a person",
    )
    on_lost_shard: Literal["replay", "continue", "stop"] = Field(
        "replay",
        description="a shard of a table lost all it had: learn the stream again for it if the broker still has all of "
        "it, else stop; continue takes what the broker still has; stop always stops",
    )
    confirm_truncation_s: float = Field(
        5.0, ge=0, description="a log that ends before what was learned of it must be seen so for this long"
    )

    @property
    def most_events(self) -> int:
        """About the largest micro-batch."""
        return max(self.batch_events, self.max_batch_events)
