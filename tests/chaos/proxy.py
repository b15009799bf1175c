"""TCP links that can be cut, frozen and led elsewhere: the network between trainers and servers.

A cut link resets its connections and refuses new ones. A frozen one is half open: nobody is told anything, nothing
arrives, and what was sent meanwhile arrives when it thaws, from those too that have given up waiting and hung up. So a
call that timed out and was made again may be carried out late.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

HOST = "127.0.0.1"
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close by RST
_CALL_S = 10.0
Result = TypeVar("Result")


class Link:
    """One listening port and where it leads. All methods may be called from any thread but the network's own."""

    def __init__(self, network: Network, upstream: int) -> None:
        self._network = network
        self._upstream = upstream
        self._is_cut = False
        self._passes = asyncio.Event()
        self._passes.set()
        self._connections: dict[asyncio.Task[None], tuple[asyncio.StreamWriter, ...]] = {}
        self.port = network.call(self._listen())

    def cut(self) -> None:
        """Reset what is connected, refuse who comes."""
        self._network.call(self._cut())

    def freeze(self) -> None:
        """Half open: connections stand, nothing passes."""
        self._network.call(self._set_passing(passes=False))

    def heal(self) -> None:
        """As if nothing had happened."""
        self._network.call(self._set_passing(passes=True))

    def lead_to(self, upstream: int, *, reset: bool) -> None:
        """New connections go to that port; `reset` ends the present ones, else they stay with whom they are."""
        self._network.call(self._lead_to(upstream, reset=reset))

    def reset(self) -> None:
        """End the present connections."""
        self._network.call(self._lead_to(self._upstream, reset=True))

    async def _listen(self) -> int:
        self._server = await asyncio.start_server(self._connected, HOST, 0)
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Reset everybody and listen no more; on the network's thread."""
        self._reset_all()
        self._server.close()

    async def _cut(self) -> None:
        self._is_cut = True
        self._passes.set()
        self._reset_all()

    async def _set_passing(self, *, passes: bool) -> None:
        self._is_cut = False
        if passes:
            self._passes.set()
        else:
            self._passes.clear()

    async def _lead_to(self, upstream: int, *, reset: bool) -> None:
        self._upstream = upstream
        if reset:
            self._reset_all()

    def _reset_all(self) -> None:
        for task, writers in self._connections.items():
            for writer in writers:
                _abort(writer)
            task.cancel()
        self._connections.clear()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if self._is_cut:
            _abort(writer)
            return
        self._connections[task] = (writer,)
        try:
            await self._passes.wait()
            try:
                answers, onward = await asyncio.open_connection(HOST, self._upstream)
            except OSError:
                _abort(writer)
                return
            self._connections[task] = (writer, onward)
            await asyncio.gather(self._carry(reader, onward), self._carry(answers, writer))
        except asyncio.CancelledError:  # reset: both ends know
            for end in (writer, *self._connections.get(task, ())):
                _abort(end)
        finally:
            self._connections.pop(task, None)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Bytes of one direction, while the link passes any; the end of them too."""
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                await self._passes.wait()
                writer.write(data)
                await writer.drain()
        await self._passes.wait()
        with contextlib.suppress(OSError):
            writer.close()


def _abort(writer: asyncio.StreamWriter) -> None:
    end = writer.get_extra_info("socket")
    with contextlib.suppress(OSError):
        if end is not None:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()


class Network:
    """The thread that all links run on."""

    def __init__(self) -> None:
        self._links: list[Link] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="network", daemon=True)
        self._thread.start()

    def link(self, upstream: int = 0) -> Link:
        """A link on a free port. Upstream 0: nowhere yet."""
        self._links.append(Link(self, upstream))
        return self._links[-1]

    def call(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run on the network's thread and wait."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_CALL_S)

    def close(self) -> None:
        """End all links. Idempotent."""
        if not self._loop.is_closed():
            self.call(self._cancel_all())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_CALL_S)
            self._loop.close()

    async def _cancel_all(self) -> None:
        for link in self._links:
            await link.close()
        mine = asyncio.current_task()
        others = [task for task in asyncio.all_tasks() if task is not mine]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
