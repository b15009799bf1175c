"""The demo's own parts: what it takes from the configuration, and what it shows."""

from __future__ import annotations

import io

from rich.console import Console

from infra.config import TowlineConfig
from infra.demo.run import own_servers
from infra.demo.standing import Standing
from infra.demo.view import render
from infra.local.stack import Endpoints

CONFIGURED = TowlineConfig.model_validate(
    {
        "kafka": {"bootstrap_servers": "prod:9092", "topic": "prod", "security_protocol": "SASL_SSL"},
        "redis": {"url": "redis://prod:6379", "cluster": True},
        "ingest": {"codec": "msgpack", "batch_wait_ms": 7},
        "model": {"dim": 16},
        "trainer": {"replay": 2, "metrics_host": "0.0.0.0", "metrics_port": 9100},
        "serving": {"host": "0.0.0.0", "port": 8123, "api_keys": ["a key"]},
        "local": {"kafka_port": 9092, "redis_port": 6379, "trainers": 3},
    }
)


def test_the_demo_never_touches_configured_servers() -> None:
    config = own_servers(CONFIGURED)
    assert config.kafka == TowlineConfig().kafka
    assert config.redis == TowlineConfig().redis
    assert (config.local.kafka_port, config.local.redis_port) == (0, 0)


def test_the_demo_shows_the_configured_model_and_trainer() -> None:
    config = own_servers(CONFIGURED)
    assert config.model == CONFIGURED.model
    assert config.trainer.replay == 2
    assert config.ingest.batch_wait_ms == 7
    assert config.ingest.codec == "json", "what its producer writes"


def test_the_demos_curl_line_needs_no_key() -> None:
    serving = own_servers(CONFIGURED).serving
    assert (serving.host, serving.port, serving.api_keys) == ("127.0.0.1", 8123, ())


def shown(standing: Standing, width: int) -> str:
    """One frame as text."""
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    ends = Endpoints("127.0.0.1:9092", "redis://", "Apache Kafka 4.3.1 (Java 17, PATH)", "Redis 7.0.15 (on PATH)")
    console.print(render(standing, 100_000, ends, "curl http://127.0.0.1:8000/v1/embeddings/user/259"))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_every_figure_is_whole_in_80_columns() -> None:
    standing = Standing(100_000, 99_000, 3, 1987.4, 55_375, 0.1854, 0.0803, 4.148, 62.4, 1194.2, store_away=True)
    text = shown(standing, 80)
    for part in (
        "100,000 / 100,000",
        "99,000 / 100,000",
        "1,987",
        "lag 997",
        "dead letters 3",
        "0.1854   popularity 0.0803   2.31 ×   over 55,375 positives",
        "4.148",
        "p50 62 ms   p99 1194 ms",
        "AWAY: learning waits for it",
        "curl http://127.0.0.1:8000/v1/embeddings/user/259\n",
    ):
        assert part in text, part


def test_what_is_not_known_yet_is_a_dash() -> None:
    text = shown(Standing(0, 0, 0, 0.0, 0, None, None, None, None, None, store_away=False), 80)
    assert "HR@10      –" in text
    assert "loss       –" in text
    assert "p50 – ms" in text
    assert "AWAY" not in text
