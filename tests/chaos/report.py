"""What a run shows while it goes, and the one JSON object that it ends with."""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import chain
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.live import Live
from rich.table import Table

from benchmarks.machine import facts
from tests.chaos.plan import Plan
from tests.chaos.verdict import Verdict
from tests.chaos.watch import Recovery, Watch

_LINES_EVERY_S = 10.0


class View:
    """On a terminal a table that changes in place; elsewhere a line every ten seconds. On standard error."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._console = Console(stderr=True)
        self._live = Live(console=self._console, refresh_per_second=4) if self._console.is_terminal else None
        self._began_s = self._said_s = time.monotonic()

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    def say(self, text: str) -> None:
        """One line."""
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def show(self, watch: Watch, under_way: int) -> None:
        """As things stand."""
        now_s = time.monotonic()
        if self._live:
            self._live.update(self._table(watch, under_way, now_s - self._began_s))
        elif now_s - self._said_s > _LINES_EVERY_S:
            self._said_s = now_s
            self.say(
                f"{now_s - self._began_s:5.0f} s: {len(watch.recoveries)} faults, {len(watch.open)} not over, "
                f"{watch.producer.events} events, lag {watch.lag()} records"
            )

    def _table(self, watch: Watch, under_way: int, elapsed_s: float) -> Table:
        title = (
            f"chaos, seed {self._plan.seed}, {self._plan.backend}: {elapsed_s:.0f} s, {watch.producer.events} events, "
            f"lag {watch.lag()} records, {under_way} faults under way"
        )
        table = Table("fault", "kind", "trainer", "recovered after", title=title)
        for recovery in watch.recoveries[-12:]:
            fault = recovery.fault
            took = "…" if recovery.took_s is None else f"{recovery.took_s:.2f} s"
            table.add_row(str(fault.number), fault.kind, "all" if fault.trainer < 0 else str(fault.trainer), took)
        return table


def summary(
    plan: Plan,
    recoveries: Sequence[Recovery],
    verdict: Verdict,
    more: Mapping[str, Any],
) -> dict[str, Any]:
    """The last line. Recovery times are by nearest rank; None: there is none, or it is of a fault not over."""
    by_kind: dict[str, list[float]] = defaultdict(list)
    for recovery in recoveries:
        by_kind[recovery.fault.kind].append(math.inf if recovery.took_s is None else recovery.took_s)
    took = list(chain.from_iterable(by_kind.values()))
    return {
        "faults": len(recoveries),
        **more,
        "lost": verdict.lost,
        "duplicated": verdict.duplicated,
        "sequences_equal": verdict.right("sequences"),
        "recovery_p99_s": quantile(took, 0.99),
        "recovery_p50_s": quantile(took, 0.5),
        "recovery_longest_s": quantile(took, 1.0),
        "weights_equal": verdict.right("weights") if plan.model == "linear" else None,
        "records_equal": verdict.right("records") if plan.features else None,
        "offsets_equal": verdict.right("offsets"),
        "clocks_equal": verdict.right("clocks"),
        "rows_evicted_or_expired": verdict.removed,
        "violations": dict(Counter({k: n for k, n in verdict.numbers.items() if n})),
        "by_kind": {
            kind: {"faults": len(times), "p50_s": quantile(times, 0.5), "p99_s": quantile(times, 0.99)}
            for kind, times in sorted(by_kind.items())
        },
        "seed": plan.seed,
        "seconds": plan.seconds,
        "eviction": plan.eviction,
        "backend": plan.backend,
        "model": plan.model,
        "features": plan.features,
        "machine": facts(),
    }


def quantile(values: Sequence[float], share: float) -> float | None:
    """By nearest rank: the smallest value that at least `share` of them do not exceed. None: no such time."""
    if not values:
        return None
    value = sorted(values)[max(0, math.ceil(share * len(values)) - 1)]
    return round(value, 2) if math.isfinite(value) else None
