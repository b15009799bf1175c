"""A progress bar on standard error for what is fetched once."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from infra.local import jars


def download_bar(what: str) -> jars.Progress:
    """For `JarCache.ensure`: shown only if something has to come; a plain line where there is no terminal."""

    @contextlib.contextmanager
    def bar(total: int) -> Iterator[jars.Arrived]:
        console = Console(stderr=True)
        if not console.is_terminal:
            console.print(f"fetching {what} ({total / 1e6:.0f} MB, once)", highlight=False)
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
            task = progress.add_task(f"fetching {what} (once)", total=total)
            yield lambda size: progress.advance(task, size)

    return bar
