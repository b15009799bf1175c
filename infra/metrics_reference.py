"""docs/METRICS.md from the registries: `python -m infra.metrics_reference` writes it, a test compares it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.registry import Collector

from serving.metrics import ServiceCollector
from serving.service import Service
from serving.settings import ServingSettings
from trainer.metrics import Metrics

PATH = Path(__file__).parent.parent / "docs" / "METRICS.md"

_HEAD = """# Metrics

<!-- Made by `python -m infra.metrics_reference` from the registries; do not edit. -->

Prometheus text. The service answers at `/metrics` on its own port (with an API key where keys are set); a trainer on
`[trainer] metrics_host` and `metrics_port`, which is off by default. With several trainers of `towline up` the second
uses the next port, and so on. A trainer's prequential figures are as of its last
apply.

What to watch on the first day:

| question | expression | worry when |
|---|---|---|
| Does learning keep up? | `sum(towline_trainer_lag_records)` | it grows for minutes |
| Does it go on? | `rate(towline_trainer_applies_total{outcome="applied"}[1m])` | 0 while events are produced |
| Is what it needs there? | `rate(towline_trainer_away_total[1m])` | above 0 |
| Is anything lost? | `increase(towline_trainer_lost_records_total[5m])` | above 0: the log says what and why |
| Does a consumer hang? | `towline_trainer_progress_age_seconds` | above `[ingest] stall_timeout_s` for long |
| Do workers collide? | `rate(towline_trainer_applies_total{outcome="conflict"}[5m])` | it stays above 0 |
| Is the input usable? | `rate(towline_trainer_dead_letters_total[5m])` | it rises: see the dead-letter topic |
| Is the model healthy? | `increase(towline_trainer_quarantined_total[5m])` | above 0 |
| Does it rank well? | `delta(towline_prequential_hits{ranking="model"}[1h]) / ignoring(ranking) \
delta(towline_prequential_tests[1h])` | below that of `ranking="popularity"` |
| Are answers fresh? | `towline_visible_delay_seconds{quantile="0.99"}` | above what you promised |
| Does the service follow? | `towline_mirror_lag_seconds` | above `[serving] max_lag_s`: readiness fails then |
| Does it answer? | `rate(towline_http_requests_total{code=~"5.."}[5m])` | above 0 |
| Does work block the event loop? | p99 of `towline_serving_loop_lag_seconds` | above 0.005 |
| Are rows finite? | `increase(towline_serving_nonfinite_rows_total[5m])` | above 0 |
"""


class Described(NamedTuple):
    """One metric as it is exposed."""

    name: str
    kind: str
    labels: tuple[str, ...]
    meaning: str


def trainer_metrics() -> list[Described]:
    """Of a worker, in order of declaration."""
    instruments = [value for value in vars(Metrics()).values() if isinstance(value, MetricWrapperBase)]
    return list(_described(instruments))


def serving_metrics() -> list[Described]:
    """Of a service, in order of exposition."""
    return list(_described([ServiceCollector(Service(ServingSettings()))]))


def markdown() -> str:
    """The whole page."""
    return "\n".join([_HEAD, *_table("Trainer", trainer_metrics()), "", *_table("Service", serving_metrics())]) + "\n"


def _described(collectors: Iterable[Collector]) -> Iterator[Described]:
    for collector in collectors:
        for family in collector.collect():
            # an instrument without children has no samples that could tell its labels
            owner: Any = collector if hasattr(collector, "_labelnames") else family
            name = f"{family.name}_total" if family.type == "counter" else family.name
            yield Described(name, family.type, tuple(owner._labelnames), family.documentation)


def _table(title: str, metrics: Iterable[Described]) -> list[str]:
    rows = [f"## {title}", "", "| metric | type | labels | meaning |", "|---|---|---|---|"]
    for metric in metrics:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        rows.append(f"| `{metric.name}` | {metric.kind} | {labels} | {metric.meaning} |")
    return rows


if __name__ == "__main__":
    PATH.write_text(markdown(), encoding="utf-8")
