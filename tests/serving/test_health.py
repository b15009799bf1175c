"""Probes, and the model's card."""

from __future__ import annotations

import re
import time

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.serving.conftest import EVENT_TIME_MS, MODEL, MakeWorld, World
from tests.serving.test_bad_input import check_problem


def test_before_a_model_is_loaded(make_world: MakeWorld) -> None:
    world = make_world(loaded=False)
    assert world.get("/livez").status_code == 200
    answer = world.get("/readyz")
    assert check_problem(answer, 503)["reasons"] == ["loading"]
    assert answer.headers["retry-after"]
    for refused in (
        world.get("/v1/embeddings/item/i1"),
        world.get("/v1/embeddings/user/u1"),
        world.post("/v1/embeddings/item:batch", {"ids": []}),
        world.post("/v1/recommend", {"user_id": "u1"}),
        world.get("/v1/model"),
    ):
        assert check_problem(refused, 503)["type"].endswith("loading")
        assert refused.headers["retry-after"]
    assert world.get("/metrics").status_code == world.get("/docs").status_code == 200


def test_loading_while_the_store_is_away_says_both(make_world: MakeWorld) -> None:
    world = make_world(loaded=False)
    world.service.freshness.failed("refused")
    assert world.get("/readyz").json()["reasons"] == ["loading", "store_down"]


def test_draining_fails_readiness_alone(world: World) -> None:
    world.service.draining = True
    assert check_problem(world.get("/readyz"), 503)["reasons"] == ["draining"]
    assert world.get("/livez").status_code == 200
    assert world.post("/v1/recommend", {"user_id": "u1"}).status_code == 200


def test_a_dead_refreshing_thread_fails_liveness(world: World) -> None:
    world.service.crash = "boom"
    check_problem(world.get("/livez"), 503)


def test_the_model_card(world: World) -> None:
    body = world.get("/v1/model").json()
    assert body["spec"] == MODEL.model_dump(mode="json")
    assert re.fullmatch(r"[0-9a-f]{12}", body["version"])
    assert (body["step"], body["dim"]) == (14, 6)
    assert body["tables"]["item"] == {"rows": 9, "shards": 2, "step": 14, "as_of": "2023-11-14T22:13:20.014Z"}
    assert body["tables"]["history"]["rows"] == 5
    assert body["freshness"] == {"samples": 0, "p50_ms": None, "p99_ms": None}
    assert (body["index"]["kind"], body["index"]["size"]) == ("exact", 9)


def test_lag_is_the_time_since_the_mirror_was_known_to_be_caught_up(world: World) -> None:
    """Not the age of the newest record: the stream here is of 2023, and idle."""
    world.service.freshness.confirm(time.monotonic())
    assert world.get("/v1/model").json()["index"]["lag_ms"] < 5000
    world.service.freshness._confirmed_s = time.monotonic() - 7
    assert 7000 <= world.get("/v1/model").json()["index"]["lag_ms"] < 12_000


def test_metrics_parse_and_count_what_happened(world: World) -> None:
    for path in ("/v1/embeddings/item/i1", "/v1/embeddings/item/i2", "/v1/embeddings/item/zzz", "/nope/secret-path"):
        world.get(path)
    world.post("/v1/recommend", {"user_id": "u1"})
    world.post("/v1/recommend", {"user_id": "stranger"})
    answer = world.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    samples = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }
    route = "/v1/embeddings/{tower}/{id}"
    assert samples["towline_http_requests_total", route, "200"] == 2
    assert samples["towline_http_requests_total", route, "404"] == 1
    assert samples["towline_http_requests_total", "404", "unmatched"] == 1
    assert samples["towline_http_request_seconds_count", route] == 3
    assert samples["towline_http_request_seconds_bucket", "+Inf", route] == 3
    assert (
        samples["towline_recommendations_total", "personal"] == samples["towline_recommendations_total", "popular"] == 1
    )
    assert samples["towline_served_row_age_seconds_count",] == 2
    assert samples["towline_serving_ready",] == 1
    assert samples["towline_mirror_items",] == 9
    assert samples["towline_mirror_as_of_timestamp_seconds",] == pytest.approx((EVENT_TIME_MS + 14) / 1000)
    assert samples["towline_http_requests_in_flight",] == 1, "this scrape"
    assert "secret-path" not in answer.text, "labels are templates: paths are without bound"
