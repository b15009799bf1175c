"""Replies from a socket's bytes. Ordinary ones become Python objects; rows of HMGET never do.

hiredis makes an object per row, which then are measured, counted and joined again: half of a client's time in a lookup.
Here the bytes stay in one buffer, and a kernel copies the rows out of it, end to end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hiredis
import numpy as np

from embedding_store.contract import I64, Bool
from embedding_store.records import U8, Records
from embedding_store.spec import TableSpec
from native.replies import DAMAGED, skip_replies, take_bulks
from native.rows import ENTRY_BYTES, HEADER_BYTES

READ_BYTES = 1 << 18
KEPT_BYTES = 1 << 22
"""A connection at rest holds no more, whatever the largest reply was."""
ARRAY, BULK = ord("*"), ord("$")
LF = ord("\n")


LINE_BYTES = 64
"""More than the first line of an array or a string has; what is received ahead of a string, and so copied, is less."""

FRAME_BYTES = 16
"""Of a row's frame in a reply."""

ID_BYTES = 24
"""Of most ids."""


class DamagedStream(Exception):
    """What came is not a reply in RESP2; the connection is of no use."""


class Replies:
    """The replies of one connection, in order."""

    def __init__(self, receive_into: Callable[[memoryview], int], error_of: Callable[[str], Exception]) -> None:
        """receive_into: fills a buffer with what comes next, returns how many bytes; error_of: makes error replies."""
        self._receive_into = receive_into
        self._reader = hiredis.Reader(protocolError=DamagedStream, replyError=error_of)
        self._data: U8 = np.empty(2 * READ_BYTES, np.uint8)
        self._start = self._end = 0

    @property
    def waiting(self) -> bool:
        """Whether bytes are here that nobody has taken."""
        return self._start < self._end

    def take(self) -> Any:
        """The next reply as a Python object. Raises what `receive_into` raises, and DamagedStream."""
        end = self._whole()
        self._reader.feed(self._data[self._start : end].tobytes())
        self._taken_to(end)
        return self._reader.gets()

    def take_rows(self, rows: RowReplies, n: int) -> Any:
        """Add the next reply, to HMGET of n fields, to `rows`; None, or the reply if it is another: an error."""
        end = self._whole()
        if self._data[self._start] != ARRAY:
            return self.take()
        if not rows.add(self._data, self._start, end, n):
            raise DamagedStream(f"the reply to HMGET of {n} fields is not an array of {n} strings")
        self._taken_to(end)
        return None

    def take_blobs(self) -> Any:
        """The next reply, its strings as (bytes,) uint8 arrays of their own; raises as `take` does.

        A string is received into its array; only what came along with its length is copied. For replies of few strings.
        Errors, numbers and nil are as from `take`.
        """
        line_end = self._line()
        kind = self._data[self._start]
        if kind not in (ARRAY, BULK):
            return self.take()
        line = self._data[self._start : line_end].tobytes()
        try:
            n = int(line[1:])
        except ValueError:
            raise DamagedStream(f"{line!r} is no length in RESP2") from None
        self._taken_to(line_end)
        if kind == ARRAY:
            return None if n < 0 else [self.take_blobs() for _ in range(n)]
        return None if n < 0 else self._blob(n)

    def _blob(self, size: int) -> U8:
        blob: U8 = np.empty(size, np.uint8)
        here = min(size, self._end - self._start)
        blob[:here] = self._data[self._start : self._start + here]
        self._taken_to(self._start + here)
        rest = blob[here:].data
        while len(rest):
            received = self._receive_into(rest)
            if received == 0:
                raise ConnectionError("connection closed by the server")
            rest = rest[received:]
        while self._end - self._start < 2:
            self._receive(LINE_BYTES)
        if self._data[self._start : self._start + 2].tobytes() != b"\r\n":
            raise DamagedStream(f"a string of {size} bytes does not end where it says")
        self._taken_to(self._start + 2)
        return blob

    def _line(self) -> int:
        """Receive until the next reply's first line is whole, or LINE_BYTES of it; where it ends."""
        while True:
            line = self._data[self._start : min(self._end, self._start + LINE_BYTES)]
            ends = np.flatnonzero(line == LF)
            if len(ends):
                return self._start + int(ends[0]) + 1
            if len(line) == LINE_BYTES:
                return self._start + LINE_BYTES  # an error's sentence: no length takes so many digits
            self._receive(LINE_BYTES)

    def _receive(self, at_most: int = READ_BYTES) -> int:
        """Receive what comes next; by how much what is here moved towards the beginning."""
        moved = self._make_room()
        received = self._receive_into(self._data[self._end : self._end + at_most].data)
        if received == 0:
            raise ConnectionError("connection closed by the server")
        self._end += received
        return moved

    def _whole(self) -> int:
        """Receive until the next reply is whole; where it ends."""
        at, pending = skip_replies(self._data, self._start, self._end, 1)
        while pending:
            if pending == DAMAGED:
                raise DamagedStream(f"byte {int(self._data[at])} begins no reply in RESP2")
            moved = self._receive(len(self._data))
            at, pending = skip_replies(self._data, at - moved, self._end, pending)
        return int(at)

    def _make_room(self) -> int:
        """Leave READ_BYTES free at the end; by how much what is here moved towards the beginning."""
        if len(self._data) - self._end >= READ_BYTES:
            return 0
        held, moved = self._data[self._start : self._end], self._start
        if 2 * (len(held) + READ_BYTES) > len(self._data):
            self._data = np.empty(2 * len(self._data), np.uint8)
        self._data[: len(held)] = held
        self._start, self._end = 0, len(held)
        return moved

    def _taken_to(self, end: int) -> None:
        self._start = end
        if end == self._end:
            self._start = self._end = 0
            if len(self._data) > KEPT_BYTES:
                self._data = np.empty(2 * READ_BYTES, np.uint8)


class RowReplies:
    """Rows of several HMGET replies, in the order they were taken, as one `Records`."""

    def __init__(self, n: int, row_bytes: int) -> None:
        """n: fields of all replies together; row_bytes: what a row is likely to take in a reply, at least 1."""
        self._found: Bool = np.zeros(n, np.bool_)
        self._bounds: I64 = np.zeros(n + 1, np.int64)
        self._data: U8 = np.empty(min(n * row_bytes, 1 << 26), np.uint8)  # grows
        self._asked = self._taken = 0

    def add(self, data: U8, at: int, end: int, n: int) -> bool:
        """Take n rows from a whole reply; False if it is not an array of n strings."""
        used = int(self._bounds[self._taken])
        if used + end - at > len(self._data):
            grown = np.empty(max(2 * len(self._data), used + end - at), np.uint8)
            grown[:used] = self._data[:used]
            self._data = grown
        found = self._found[self._asked : self._asked + n]
        taken, _ = take_bulks(data, at, end, found, self._bounds, self._taken, self._data)
        if taken < 0:
            return False
        self._asked += n
        self._taken = int(taken)
        return True

    def records(self) -> Records:
        """All rows. Raises AssertionError before the last reply was taken."""
        if self._asked != len(self._found):
            raise AssertionError(f"{self._asked} of {len(self._found)} rows were read")
        bounds = self._bounds[: self._taken + 1]
        return Records(self._found, bounds, self._data[: bounds[-1]])


def row_bytes(spec: TableSpec) -> int:
    """What most rows of a table take in a reply."""
    return FRAME_BYTES + HEADER_BYTES + 4 * (spec.dim + spec.state_dim) + ENTRY_BYTES * spec.length + ID_BYTES
