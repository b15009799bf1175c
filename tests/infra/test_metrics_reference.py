"""docs/METRICS.md is what the processes expose."""

from __future__ import annotations

import re

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from infra.metrics_reference import PATH, markdown, serving_metrics, trainer_metrics
from serving.metrics import exposition
from serving.service import Service
from serving.settings import ServingSettings
from trainer.metrics import Metrics


def test_the_page_is_in_step_with_the_registries() -> None:
    assert PATH.read_text(encoding="utf-8") == markdown(), "run `python -m infra.metrics_reference`"


def test_all_that_is_exposed_is_on_the_page() -> None:
    text = generate_latest(Metrics().registry).decode() + exposition(Service(ServingSettings())).decode()
    exposed = {f"{f.name}_total" if f.type == "counter" else f.name for f in text_string_to_metric_families(text)}
    described = {metric.name for metric in trainer_metrics() + serving_metrics()}
    assert {name for name in exposed if not name.endswith("_created")} == described


def test_what_to_watch_exists_with_those_labels() -> None:
    known = {metric.name: set(metric.labels) for metric in trainer_metrics() + serving_metrics()}
    watched = re.findall(r"(towline_\w+)(?:\{(\w+)=)?", markdown().partition("## Trainer")[0])
    assert len(watched) >= 10
    for name, label in watched:
        assert name in known
        if label and label != "quantile":
            assert label in known[name], name
