"""Commands as bytes. Small ones are packed in Python; those with an argument per row by kernels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from embedding_store.contract import U64
from embedding_store.merge import Merged
from embedding_store.records import U8
from native.rows import FIELD_FRAME, encode_fields

CHUNK = 16_384
"""Rows per command: bounds what one command holds up, and stays far below the server's 2^20 arguments."""

Buffer = bytes | memoryview


def pack(*arguments: bytes | str | int) -> bytes:
    """One command."""
    return b"*%d\r\n%b" % (len(arguments), _arguments(arguments))


def framed(head: Sequence[bytes | str | int], size: int, tail: Sequence[bytes | str | int] = ()) -> tuple[U8, U8]:
    """(a command, the `size` bytes of it that the caller writes): arguments `head`, those bytes, `tail`.

    So that what is large is written once, where it is sent from.
    """
    before = b"*%d\r\n%b$%d\r\n" % (len(head) + 1 + len(tail), _arguments(head), size)
    after = b"\r\n" + _arguments(tail)
    command: U8 = np.empty(len(before) + size + len(after), np.uint8)
    command[: len(before)] = np.frombuffer(before, np.uint8)
    command[len(before) + size :] = np.frombuffer(after, np.uint8)
    return command, command[len(before) : len(before) + size]


def chunks(n: int) -> list[int]:
    """How many rows each command for n rows has."""
    return [min(CHUNK, n - lo) for lo in range(0, n, CHUNK)]


def hmget(key: bytes, fields: U64) -> list[bytes]:
    """HMGET commands for all fields (n,), CHUNK fields each; none for no fields."""
    return _with_fields(b"HMGET", key, fields)


def hdel(key: bytes, fields: U64) -> list[bytes]:
    """HDEL commands for all fields, CHUNK fields each."""
    return _with_fields(b"HDEL", key, fields)


def hset(key: bytes, merged: Merged) -> list[Buffer]:
    """HSET commands for the rows to be written, CHUNK rows each, as (head, arguments) pairs of buffers."""
    buffers: list[Buffer] = []
    for lo in range(0, len(merged.rows), CHUNK):
        rows = merged.rows[lo : lo + CHUNK]
        arguments, _ = merged.encode(rows, framed=True)
        buffers += [_head(b"HSET", key, 2 * len(rows)), arguments.data]
    return buffers


def _with_fields(command: bytes, key: bytes, fields: U64) -> list[bytes]:
    commands = []
    for lo in range(0, len(fields), CHUNK):
        chunk = np.ascontiguousarray(fields[lo : lo + CHUNK])
        arguments = np.empty(FIELD_FRAME * len(chunk), np.uint8)
        encode_fields(chunk, arguments)
        commands.append(_head(command, key, len(chunk)) + arguments.tobytes())
    return commands


def _arguments(arguments: Sequence[bytes | str | int]) -> bytes:
    parts = []
    for argument in arguments:
        data = argument if isinstance(argument, bytes) else str(argument).encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(parts)


def _head(command: bytes, key: bytes, arguments: int) -> bytes:
    return b"*%d\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n" % (2 + arguments, len(command), command, len(key), key)
