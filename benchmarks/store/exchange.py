"""One client for every server: prebuilt bytes go out, the reply comes into a buffer that is there already.

So only the servers differ. What a real client spends on packing and parsing is measured apart, by `writers`.
"""

from __future__ import annotations

import socket
import struct
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

TIMEOUT_S = 60
SMALL_BYTES = 4096
"""A reply that is smaller is one write of the server's, and so one receive of ours."""


@dataclass(frozen=True)
class Request:
    """Bytes to send, and how many come back; None: a small reply of some length."""

    data: Any  # bytes, bytearray or array
    reply_bytes: int | None = None


class Exchange:
    """A connection over a Unix socket."""

    def __init__(self, path: Path, most_bytes: int) -> None:
        """most_bytes: of any reply."""
        self._socket = socket.socket(socket.AF_UNIX)
        # a time-out of the kernel's: one of Python's would cost a poll a call
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            self._socket.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", TIMEOUT_S, 0))
        self._socket.connect(str(path))
        self._buffer = np.zeros(max(most_bytes, SMALL_BYTES), np.uint8)
        self._view = memoryview(self._buffer)
        self._received = 0

    def seconds(self, request: Request) -> float:
        """Wall time from the first byte sent to the last received. Raises OSError, RuntimeError for a refusal."""
        view, receive = self._view, self._socket.recv_into
        expected = request.reply_bytes or SMALL_BYTES
        started = time.perf_counter()
        self._socket.sendall(request.data)
        received = receive(view[:expected])
        # a whole line that is a refusal: a reply of the floor's may begin with any byte
        refused = 0 < received < expected and self._buffer[0] == ord("-") and self._buffer[received - 1] == ord("\n")
        if request.reply_bytes is not None and not refused:
            while 0 < received < expected:
                got = receive(view[received:expected])
                if not got:
                    break
                received += got
        taken = time.perf_counter() - started
        self._received = received
        if refused:
            raise RuntimeError(f"the server refused: {self.reply[:300]!r}")
        if not received or (request.reply_bytes is not None and received < expected):
            raise ConnectionError(f"the server ended the connection after {received} bytes: did it die?")
        return taken

    @property
    def reply(self) -> bytes:
        """The last one."""
        return self._buffer[: self._received].tobytes()

    def close(self) -> None:
        self._socket.close()
