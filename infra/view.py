"""What people see of the local stack."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from infra.local.stack import Status

_STYLES = {"running": "green", "dead": "bold red", "configured": "cyan", "not started": "dim"}


def show_status(lines: Sequence[Status], console: Console) -> None:
    """One row for each server and service; then notes, alarms and, for dead ones, the log and the remedy."""
    widths = [max(len(str(line[i])) for line in lines) for i in range(3)]
    for line in lines:
        kind, name, health = (str(line[i]).ljust(widths[i]) for i in range(3))
        row = Text.assemble(f"{kind}  {name}  ", (health, _STYLES[line.health]), f"  {line.address}")
        row.append(f"  pid {line.pid}" if line.pid else "", style="dim")
        console.print(row, soft_wrap=True)  # addresses are copied from here: never cut, never folded
    for line in lines:
        if line.note:
            console.print(Text(f"{line.kind}: {line.note}", style="yellow"), soft_wrap=True)
        if line.alarm:
            console.print(Text(line.alarm, style="bold red"), soft_wrap=True)
        if line.health == "dead":
            remedy = f"{line.name} is dead: its log is {line.log}; `towline up` starts it again"
            console.print(Text(remedy, style="red"), soft_wrap=True)
