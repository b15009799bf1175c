"""Requests at times fixed beforehand, whatever the server does: latency counts from when a request was due.

A client that waits for each answer before it asks again leaves out just the requests that would have waited.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np


@dataclass
class Paced:
    """What came of the requests."""

    latencies_s: list[float] = field(default_factory=list)
    statuses: dict[int, int] = field(default_factory=dict)  # 0: no whole answer
    unasked: int = 0  # left out because `go_on` said so

    def percentile_ms(self, q: float) -> float:
        """Of answered requests."""
        return round(float(np.percentile(self.latencies_s, q)) * 1e3, 2)

    @property
    def failed(self) -> int:
        """Requests without an answer of 2xx."""
        return sum(n for status, n in self.statuses.items() if not 200 <= status < 300)


def run(
    port: int,
    path: str,
    bodies: Sequence[bytes],
    rate: float,
    seconds: float,
    *,
    connections: int = 32,
    go_on: Callable[[], bool] = lambda: True,
    seed: int = 1,
    method: str = "POST",
) -> Paced:
    """Ask with `bodies` in turn, on average `rate` a second, at exponential distances; `go_on` is asked for each."""
    gaps = np.random.default_rng(seed).exponential(1 / rate, round(rate * seconds))
    head = f"{method} {path} HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nContent-Length: "
    return asyncio.run(_run(port, head, bodies, np.cumsum(gaps), connections, go_on))


async def _run(
    port: int, head: str, bodies: Sequence[bytes], due_s: np.ndarray, connections: int, go_on: Callable[[], bool]
) -> Paced:
    paced = Paced()
    queue: asyncio.Queue[tuple[float, bytes] | None] = asyncio.Queue()
    clients = [asyncio.create_task(_client(port, head, queue, paced, go_on)) for _ in range(connections)]
    begun = time.perf_counter()
    for i, due in enumerate(due_s.tolist()):
        wait = begun + due - time.perf_counter()
        if wait > 0:
            await asyncio.sleep(wait)
        queue.put_nowait((begun + due, bodies[i % len(bodies)]))
    for _ in clients:
        queue.put_nowait(None)
    await asyncio.gather(*clients)
    return paced


async def _client(
    port: int,
    head: str,
    queue: asyncio.Queue[tuple[float, bytes] | None],
    paced: Paced,
    go_on: Callable[[], bool],
) -> None:
    """One connection, opened when it is first needed, again after it was closed."""
    reader: asyncio.StreamReader | None = None
    writer: asyncio.StreamWriter | None = None
    while (asked := await queue.get()) is not None:
        due, body = asked
        if not go_on():
            paced.unasked += 1
            continue
        status = 0
        try:
            if reader is None or writer is None:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(f"{head}{len(body)}\r\n\r\n".encode() + body)
            status, lasts = await _answer(reader)
            paced.latencies_s.append(time.perf_counter() - due)
            if not lasts:
                writer.close()
                reader = writer = None
        except (OSError, asyncio.IncompleteReadError):
            if writer is not None:
                writer.close()
            reader = writer = None
        paced.statuses[status] = paced.statuses.get(status, 0) + 1
    if writer is not None:
        writer.close()


async def _answer(reader: asyncio.StreamReader) -> tuple[int, bool]:
    """(status, whether the connection lasts) of one answer, read to its end."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = int(head.split(b"content-length:")[1].split(b"\r\n")[0])
    await reader.readexactly(length)
    return int(head[9:12]), b"connection: close" not in head
