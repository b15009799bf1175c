"""What people see of the local stack."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from infra.local.stack import Status

_STYLES = {"running": "green", "dead": "bold red", "configured": "cyan", "not started": "dim"}


def show_status(lines: Sequence[Status], console: Console) -> None:
    """One row for each server and service; then notes and, for dead ones, the log and the remedy."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("", "what", "state", "address", "pid"):
        # Addresses are copied from here: folded, never cut.
        table.add_column(column, overflow="fold")
    for line in lines:
        state = f"[{_STYLES[line.health]}]{line.health}[/]"
        table.add_row(line.kind, line.name, state, line.address, str(line.pid or ""))
    console.print(table, highlight=False)
    for line in lines:
        if line.note:
            console.print(f"{line.kind}: {line.note}", style="yellow", highlight=False, markup=False)
        if line.health == "dead":
            console.print(
                f"{line.name} is dead: its log is {line.log}; `towline up` starts it again",
                style="red",
                highlight=False,
                markup=False,
                soft_wrap=True,
            )
