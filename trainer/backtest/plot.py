"""HR@10 over time as a picture. matplotlib is optional: `pip install 'towline[plot]'`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from trainer.backtest.errors import Unavailable


def plot(curve: Sequence[Mapping[str, float]], path: Path, k: int = 10) -> None:
    """Draw `report.over_time`, a line per ranking, to a PNG. Raises Unavailable."""
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415  an optional package
    except ModuleNotFoundError:
        raise Unavailable("a plot needs matplotlib: `pip install 'towline[plot]'`") from None
    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.subplots()
    for name in curve[0] if curve else ():
        if name != "event":
            axes.plot([p["event"] for p in curve], [p[name] for p in curve], label=name)
    axes.set(xlabel="event", ylabel=f"HR@{k}", ylim=(0, None), title="Tested, then learned")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)
