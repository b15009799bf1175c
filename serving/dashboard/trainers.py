"""What trainers tell Prometheus, read as Prometheus would: loss and hit rates are theirs, the store has none."""

from __future__ import annotations

import http.client
import logging
import urllib.request
from collections.abc import Sequence
from statistics import fmean

import msgspec
from prometheus_client.parser import text_string_to_metric_families

log = logging.getLogger(__name__)

_TIMEOUT_S = 0.5
_MAX_BYTES = 2**21


class Training(msgspec.Struct, frozen=True):
    """Of all trainers that answer; None where none of them has it yet."""

    seen: int  # trainers that answered
    named: int  # trainers that were asked
    loss: float | None = None  # mean of their last steps
    hit_rate: float | None = None  # HR@k of their last 2000 tests, mean
    hit_rate_popularity: float | None = None
    lag_records: float | None = None  # sum


def look(urls: Sequence[str]) -> Training:
    """Ask each trainer. One that does not answer in time is not seen; never raises for it."""
    told = [answer for url in urls if (answer := _ask(url)) is not None]

    def of(name: str) -> list[float]:
        return [values[name] for values in told if name in values]

    def mean(name: str) -> float | None:
        found = of(name)
        return fmean(found) if found else None

    learned = [values["towline_trainer_loss"] for values in told if values.get("towline_trainer_batches_total")]
    lags = of("towline_trainer_lag_records")
    return Training(
        seen=len(told),
        named=len(urls),
        loss=fmean(learned) if learned else None,
        hit_rate=mean("towline_prequential_recent/model"),
        hit_rate_popularity=mean("towline_prequential_recent/popularity"),
        lag_records=sum(lags) if lags else None,
    )


def _ask(url: str) -> dict[str, float] | None:
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:  # noqa: S310 - http, by the settings
            text = answer.read(_MAX_BYTES).decode()
        return {
            "/".join([sample.name, *sample.labels.values()]): float(sample.value)
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }
    except (OSError, http.client.HTTPException, ValueError) as error:
        log.debug("no metrics from %s: %s", url, error)
        return None
