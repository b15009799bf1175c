"""The module's refusals in the words of the other backends."""

import io

import pytest
from redis.connection import Connection

from embedding_store.contract import Range, Source
from embedding_store.errors import (
    BadRequest,
    GenerationError,
    SeekConflict,
    SpecConflict,
    StoreError,
    StoreFull,
    StoreMisconfigured,
    StoreUnavailable,
)
from embedding_store.module_store.refusals import refused
from embedding_store.redis_store.client import Address, Moved
from embedding_store.redis_store.replies import Replies
from embedding_store.shard import ShardMeta, judge, jump
from tests.flushes import flush_of

SOURCE = Source("a:b c", 3)
PLACE = "shard 1 of table 'item'"


def error(line: str) -> StoreError:
    """An error reply as the client reads it."""
    raw = io.BytesIO(f"-{line}\r\n".encode())
    return refused(Replies(raw.readinto, Connection()._parser.parse_error).take_blobs(), PLACE, Address("here", 1))


def raised(call) -> StoreError:
    with pytest.raises(StoreError) as caught:
        call()
    return caught.value


@pytest.mark.parametrize("given", [2, 4])
def test_generations(given):
    other = raised(lambda: judge(ShardMeta(generation=3), flush_of([], 0, 1, generation=given), PLACE))
    told = error(f"TOWGEN stored 3 given {given}")
    assert (type(told), str(told)) == (GenerationError, str(other))


@pytest.mark.parametrize(("stored", "expected"), [(None, 5), (5, None), (5, 6)])
def test_offsets(stored, expected):
    meta = ShardMeta(offsets={} if stored is None else {SOURCE: stored})
    other = raised(lambda: jump(meta, SOURCE, expected, 9, "why", PLACE))
    was, wanted = ("unset" if n is None else n for n in (stored, expected))
    told = error(f"TOWSEEK offset of a:b c:3 is {was}, expected {wanted}")
    assert (type(told), str(told)) == (SeekConflict, str(other))


def test_clocks():
    flush = flush_of([], 0, 1, events=2**52, ranges=(Range(SOURCE, 0, 1),))
    other = raised(lambda: judge(ShardMeta(clock=2**52, offsets={SOURCE: 0}), flush, PLACE))
    told = error(
        f"TOWBAD the clock is {2**52}: {2**52} events more don't fit 53 bits; send the number of usable events"
    )
    assert (type(told), str(told)) == (BadRequest, str(other))


@pytest.mark.parametrize(
    ("line", "kind", "message"),
    [
        ("TOWSEEK offset of a name that was cut", SeekConflict, f"{PLACE}: offset of a name that was cut"),
        ("TOWBAD 3 bytes, a head has 112", BadRequest, f"{PLACE}: 3 bytes, a head has 112"),
        ("TOWKIND a sequence", BadRequest, f"{PLACE}: a sequence"),
        ("TOWSPEC dim is 5, got 6", SpecConflict, "another declaration: dim is 5, got 6; use the stored one"),
        ("TOWNONE no such shard", StoreUnavailable, f"{PLACE} is lost"),
        ("WRONGTYPE Operation against a key", StoreMisconfigured, "something else writes to its key"),
        ("OOM command not allowed", StoreFull, "here:1 is out of memory"),
        ("MOVED 5 there:2", Moved, "slot moved"),
        ("READONLY You can't write", StoreUnavailable, "refuses for now"),
        ("ERR unknown command 'TOW.APPLY', with args beginning with: ", StoreMisconfigured, "--loadmodule"),
    ],
)
def test_others(line, kind, message):
    told = error(line)
    assert type(told) is kind
    assert message in str(told)
