"""Counters of the event loop's thread, exposed to Prometheus when asked.

prometheus_client's own counters and histograms cost 72 µs a request; these cost about one, and are only turned into its
metrics by a scrape. Requests are counted on the loop's thread alone; row alarms come from any thread, hence a lock.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from serving.histogram import Histogram
from serving.loop_watch import LoopWatch

if TYPE_CHECKING:
    from serving.service import Service

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_BOUNDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
ROW_AGES = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0, 86400.0)


class Metrics:
    """What the process counted since it started."""

    def __init__(self) -> None:
        self.in_flight = 0
        self.requests: dict[tuple[str, int], int] = {}
        self.seconds: dict[str, Histogram] = {}
        self.served_age = Histogram(ROW_AGES)
        self.loop = LoopWatch()
        self.strategies: dict[str, int] = {}
        self._lock = threading.Lock()
        self._nonfinite = {"user": 0, "item": 0}

    def request(self, route: str, status: int, seconds: float) -> None:
        """Count an answered request. `route` is a template, never a path: paths are without bound."""
        self.requests[route, status] = self.requests.get((route, status), 0) + 1
        histogram = self.seconds.get(route)
        if histogram is None:
            histogram = self.seconds[route] = Histogram(_BOUNDS)
        histogram.observe(seconds)

    bounds = _BOUNDS
    """Upper bounds of `seconds`, and of `answered_within`."""

    def answered_within(self) -> list[int]:
        """Requests of all routes by their time, one count more than `bounds`; streams, which last, left out."""
        every = [histogram.counts for route, histogram in list(self.seconds.items()) if not route.endswith("/events")]
        return [sum(counts) for counts in zip(*every, strict=True)] or [0] * (len(_BOUNDS) + 1)

    def strategy(self, name: str) -> None:
        """Count a recommendation by how it was made."""
        self.strategies[name] = self.strategies.get(name, 0) + 1

    def nonfinite(self, tower: str, rows: int) -> None:
        """Alarm: rows that hold NaN or infinity, answered as missing. From any thread."""
        with self._lock:
            self._nonfinite[tower] += rows

    def nonfinite_rows(self) -> dict[str, int]:
        """Rows refused by tower."""
        with self._lock:
            return dict(self._nonfinite)


class ServiceCollector(Collector):
    """A service's counters and state as Prometheus families, read when asked."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        yield from self._requests(self._service.metrics)
        yield from self._answers(self._service.metrics)
        yield from self._mirror(self._service)
        offload = self._service.offload
        yield _gauge("towline_serving_offload_pending", "Work running or waiting for a thread.", offload.pending)
        yield _counter(
            "towline_serving_offload_refused", "Requests refused because the queue was full.", offload.refused
        )

    def _requests(self, metrics: Metrics) -> Iterable[Metric]:
        requests = CounterMetricFamily("towline_http_requests", "Requests answered.", labels=("route", "code"))
        for (route, code), count in list(metrics.requests.items()):
            requests.add_metric((route, str(code)), count)
        yield requests
        seconds = HistogramMetricFamily("towline_http_request_seconds", "Time to the last byte.", labels=("route",))
        for route, histogram in list(metrics.seconds.items()):
            seconds.add_metric((route,), histogram.buckets(), histogram.total)
        yield seconds
        lag = HistogramMetricFamily(
            "towline_serving_loop_lag_seconds", "How late the event loop was, asked every 20 ms."
        )
        lag.add_metric((), metrics.loop.lags.buckets(), metrics.loop.lags.total)
        yield lag
        yield _gauge("towline_http_requests_in_flight", "Requests being answered.", metrics.in_flight)

    def _answers(self, metrics: Metrics) -> Iterable[Metric]:
        strategies = CounterMetricFamily("towline_recommendations", "Recommendations answered.", labels=("strategy",))
        for name, count in list(metrics.strategies.items()):
            strategies.add_metric((name,), count)
        yield strategies
        alarms = CounterMetricFamily(
            "towline_serving_nonfinite_rows",
            "Alarm: rows with NaN or infinity, answered as missing.",
            labels=("tower",),
        )
        for tower, count in metrics.nonfinite_rows().items():
            alarms.add_metric((tower,), count)
        yield alarms
        age = HistogramMetricFamily(
            "towline_served_row_age_seconds", "Time since the last update of a row served alone."
        )
        age.add_metric((), metrics.served_age.buckets(), metrics.served_age.total)
        yield age

    def _mirror(self, service: Service) -> Iterable[Metric]:
        freshness, live = service.freshness, service.live
        yield _gauge("towline_serving_ready", "1 if readiness is 200.", int(not service.unready()))
        yield _gauge("towline_serving_stale", "1 if answers say X-Stale.", int(service.stale))
        yield _gauge("towline_mirror_lag_seconds", "Time since the mirror held all of the feed.", freshness.lag_s)
        yield _gauge("towline_mirror_items", "Items in the mirror.", live.mirror.size if live else 0)
        yield _gauge("towline_mirror_step", "Event clock of the mirror.", live.mirror.clock if live else 0)
        as_of = live.mirror.event_time_ms / 1000 if live else 0
        yield _gauge("towline_mirror_as_of_timestamp_seconds", "Event time the mirror reflects.", as_of)
        yield _counter("towline_mirror_refreshes", "Refreshes of the mirror.", freshness.refreshes)
        yield _counter("towline_mirror_rows_changed", "Item rows changed by refreshes.", freshness.rows_changed)
        yield _counter("towline_mirror_failures", "Attempts to follow the feed that failed.", freshness.failures)
        delays = freshness.delays()
        visible = GaugeMetricFamily(
            "towline_visible_delay_seconds", "Record produced → visible, last refreshes.", labels=("quantile",)
        )
        for quantile, value in (("0.5", delays.p50_ms), ("0.99", delays.p99_ms)):
            if value is not None:
                visible.add_metric((quantile,), value / 1000)
        yield visible


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(name, text, value=value)


def exposition(service: Service) -> bytes:
    """The text that Prometheus scrapes."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(ServiceCollector(service))
    return generate_latest(registry)
