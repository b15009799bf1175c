"""The demo's live terminal view."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from infra.demo.standing import Standing
from infra.local.stack import Endpoints


def render(standing: Standing, total: int, endpoints: Endpoints, curl: str) -> RenderableType:
    """One frame."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True, min_width=9)
    grid.add_column(no_wrap=True)
    grid.add_row("sent", _bar(standing.sent, total))
    grid.add_row("learned", _bar(standing.applied, total))
    lag = standing.sent - standing.applied - standing.dead_letters
    grid.add_row("events/s", f"{standing.events_per_s:,.0f}   lag {lag:,}   dead letters {standing.dead_letters:,}")
    grid.add_row("HR@10", _hit_rate(standing))
    grid.add_row("loss", _number(standing.loss, ".3f"))
    grid.add_row(
        "freshness",
        f"p50 {_number(standing.freshness_p50_ms, '.0f')} ms   p99 {_number(standing.freshness_p99_ms, '.0f')} ms   "
        "from producer to HTTP",
    )
    grid.add_row("broker", endpoints.broker_name + (f" ({endpoints.broker_note})" if endpoints.broker_note else ""))
    store = Text(endpoints.store_name + (f" ({endpoints.store_note})" if endpoints.store_note else ""))
    if standing.store_away:
        store.append("  AWAY: learning waits for it", style="bold red")
    grid.add_row("store", store)
    return Group(Panel(grid, title="Towline: MovieLens 100K as a stream", expand=False), Text(curl, style="cyan"))


def _bar(done: int, total: int) -> RenderableType:
    row = Table.grid(padding=(0, 1))
    row.add_row(ProgressBar(total=max(1, total), completed=done, width=40), f"{done:,} / {total:,}")
    return row


def _hit_rate(standing: Standing) -> str:
    if standing.hr10 is None or standing.hr10_popularity is None:
        return "–"
    ratio = f"   {standing.hr10 / standing.hr10_popularity:.2f} ×" if standing.hr10_popularity else ""
    return f"{standing.hr10:.4f}   popularity {standing.hr10_popularity:.4f}{ratio}   over {standing.tests:,} positives"


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)
