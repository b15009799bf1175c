"""Counters of the event loop's thread, exposed to Prometheus when asked.

prometheus_client's own counters and histograms cost 72 µs a request; these cost about one, and are only turned into its
metrics by a scrape. Requests are counted on the loop's thread alone; row alarms come from any thread, hence a lock.

Of several workers each has the same numbers in a place of its own in shared memory: whoever is asked adds them up. They
outlive a worker that is killed, and the one that takes its place counts on, so that no sum ever falls.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from serving.histogram import Histogram
from serving.loop_watch import LoopWatch
from serving.numbers import Numbers, Parts, numbers

if TYPE_CHECKING:
    from serving.service import Service

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_BOUNDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
ROW_AGES = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0, 86400.0)


_STRATEGIES = ("personal", "popular", "mean")
_TOWERS = ("user", "item")
_MOST_ROUTES = 32
_CODES = 600
CELLS = (
    4 + len(_STRATEGIES) + len(_TOWERS) + Histogram.cells_of(ROW_AGES) + Histogram.cells_of(LoopWatch.bounds)
    + _MOST_ROUTES * (Histogram.cells_of(_BOUNDS) + _CODES)
)  # fmt: skip
"""Numbers that the metrics of a process are kept in."""


class Metrics:
    """What the process counted since it started; as one of several, what came before it in its place counted, too."""

    bounds = _BOUNDS
    """Upper bounds of the times of requests, and of `answered_within`."""

    def __init__(self, cells: Numbers | None = None, everyone: Callable[[], Numbers] | None = None) -> None:
        """cells: where all of it is kept, `CELLS` of them; everyone: sums over all processes that serve."""
        self._everyone = everyone
        self._lock = threading.Lock()
        self._routes: dict[str, int] = {}
        parts = Parts(numbers(CELLS) if cells is None else cells)
        self._now = parts.take(1)
        self.offload = parts.take(3)[:2]
        self._strategies, self._nonfinite = parts.take(len(_STRATEGIES)), parts.take(len(_TOWERS))
        self.served_age = Histogram(ROW_AGES, parts.take(Histogram.cells_of(ROW_AGES)))
        self.loop = LoopWatch(parts.take(Histogram.cells_of(LoopWatch.bounds)))
        times = parts.several(_MOST_ROUTES, Histogram.cells_of(_BOUNDS))
        self._seconds = [Histogram(_BOUNDS, cells) for cells in times]
        self._codes = list(parts.several(_MOST_ROUTES, _CODES))

    def of_all(self) -> Metrics:
        """The sums over all processes that serve; itself where there is no other."""
        if self._everyone is None:
            return self
        total = Metrics(self._everyone())
        total._routes = self._routes
        return total

    def begin(self) -> None:
        """A process begins in the place of one that ended: nothing is being answered."""
        self._now[0] = self.offload[0] = 0

    @property
    def in_flight(self) -> int:
        """Requests being answered."""
        return int(self._now[0])

    @in_flight.setter
    def in_flight(self, value: int) -> None:
        self._now[0] = value

    def know(self, routes: Iterable[str]) -> None:
        """Give routes their places: the same in each process that names the same ones in the same order."""
        for route in routes:
            self._routes.setdefault(route, len(self._routes))

    def request(self, route: str, status: int, seconds: float) -> None:
        """Count an answered request. `route` is a template, never a path: paths are without bound."""
        at = self._routes.get(route)
        if at is None:
            self.know([route])
            at = self._routes[route]
        self._codes[at][status] += 1
        self._seconds[at].observe(seconds)

    @property
    def requests(self) -> dict[tuple[str, int], int]:
        """Requests answered, by route and code."""
        return {
            (route, code): int(count)
            for route, at in list(self._routes.items())
            for code, count in enumerate(self._codes[at])
            if count
        }

    @property
    def seconds(self) -> dict[str, Histogram]:
        """Times of requests, by route that was asked for."""
        return {route: self._seconds[at] for route, at in list(self._routes.items()) if any(self._seconds[at].counts)}

    def answered_within(self) -> list[int]:
        """Requests of all routes by their time, one count more than `bounds`; streams, which last, left out."""
        every = [histogram.counts for route, histogram in self.seconds.items() if not route.endswith("/events")]
        return [int(sum(counts)) for counts in zip(*every, strict=True)] or [0] * (len(_BOUNDS) + 1)

    def strategy(self, name: str) -> None:
        """Count a recommendation by how it was made."""
        self._strategies[_STRATEGIES.index(name)] += 1

    @property
    def strategies(self) -> dict[str, int]:
        """Recommendations by how they were made."""
        return {name: int(count) for name, count in zip(_STRATEGIES, self._strategies, strict=True) if count}

    def nonfinite(self, tower: str, rows: int) -> None:
        """Alarm: rows that hold NaN or infinity, answered as missing. From any thread."""
        with self._lock:
            self._nonfinite[_TOWERS.index(tower)] += rows

    def nonfinite_rows(self) -> dict[str, int]:
        """Rows refused by tower."""
        return {tower: int(rows) for tower, rows in zip(_TOWERS, self._nonfinite, strict=True)}


class ServiceCollector(Collector):
    """A service's counters and state as Prometheus families, read when asked."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        metrics = self._service.metrics.of_all()
        yield from self._requests(metrics)
        yield from self._answers(metrics)
        yield from self._mirror(self._service)
        pending, refused = metrics.offload
        yield _gauge("towline_serving_offload_pending", "Work running or waiting for a thread.", pending)
        yield _counter("towline_serving_offload_refused", "Requests refused because the queue was full.", refused)
        yield from self._processes(self._service)

    def _processes(self, service: Service) -> Iterable[Metric]:
        yield _gauge("towline_serving_workers", "Processes that answer requests.", service.crew.workers)
        restarts = CounterMetricFamily(
            "towline_serving_restarts", "Processes that ended and were started again.", labels=("process",)
        )
        restarts.add_metric(("worker",), service.crew.worker_restarts)
        restarts.add_metric(("writer",), service.crew.writer_restarts)
        yield restarts

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
        age = GaugeMetricFamily("towline_mirror_file_age_seconds", "How old what the mirror's file holds is.")
        if (age_s := freshness.saved_age_s) is not None:
            age.add_metric((), age_s)
        yield age
        yield _counter("towline_mirror_file_failures", "Saves of that file that failed.", freshness.save_failures)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(name, text, value=value)


def exposition(service: Service) -> bytes:
    """The text that Prometheus scrapes."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(ServiceCollector(service))
    return generate_latest(registry)
