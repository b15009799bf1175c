"""The mark of a store that is being restored. While it is there the store's shards are of two times, or were when the
restore was killed: nobody learns, and nobody takes a snapshot, until a restore has gone through.
"""

from __future__ import annotations

import msgspec

from embedding_store.errors import StoreBeingRestored, StoreUnavailable
from embedding_store.redis_store.keys import RESTORING
from embedding_store.redis_store.resp import pack
from embedding_store.redis_store.session import Session, routed
from embedding_store.redis_store.topology import Nodes


class Mark(msgspec.Struct, frozen=True):
    """What a restore notes before it touches anything."""

    token: str  # of the restore that is at work; another one takes over by setting its own
    snapshot: str
    options: str  # of the command, for the remedy
    standing: dict[str, int]  # source → the highest offset any shard had before the first restore was begun

    @property
    def remedy(self) -> str:
        """What to tell whoever has to wait."""
        return (
            f"the store is being restored from snapshot '{self.snapshot}'. If that was interrupted, run "
            f"`towline snapshot restore {self.snapshot}{self.options}` again, or restore another snapshot"
        )


def read_mark(document: bytes | None) -> Mark | None:
    """From what is stored; a mark of another release is one all the same."""
    if document is None:
        return None
    try:
        return msgspec.json.decode(document, type=Mark)
    except msgspec.DecodeError:
        return Mark("", "of another release", "", {})


def refuse(document: bytes | None) -> None:
    """Raises StoreBeingRestored, with the remedy, where there is a mark."""
    mark = read_mark(document)
    if mark is not None:
        raise StoreBeingRestored(mark.remedy)


def standing_mark(nodes: Nodes) -> Mark | None:
    """The store's mark."""
    return read_mark(routed(nodes, lambda s: s.shared(RESTORING).call("GET", RESTORING)))


def set_mark(nodes: Nodes, mark: Mark) -> None:
    """Begin to restore, or take over from whoever did."""
    routed(nodes, lambda s: s.shared(RESTORING).call("SET", RESTORING, msgspec.json.encode(mark)))


def check_mark(nodes: Nodes, mark: Mark) -> None:
    """Raises StoreUnavailable if another restore has taken over."""
    found = standing_mark(nodes)
    if found is None or found.token != mark.token:
        raise taken_over(found)


def clear_mark(nodes: Nodes, mark: Mark) -> None:
    """The store is restored. Raises as `check_mark`."""

    def clear(session: Session) -> bool:
        wire = session.shared(RESTORING)
        found = read_mark(wire.ask(pack("WATCH", RESTORING), pack("GET", RESTORING))[1])
        if found is None or found.token != mark.token:
            wire.call("UNWATCH")
            raise taken_over(found)
        return wire.ask(pack("MULTI"), pack("DEL", RESTORING), pack("EXEC"))[-1] is not None

    while not routed(nodes, clear):
        pass


def taken_over(found: Mark | None) -> StoreUnavailable:
    """The error of a restore that has lost its mark."""
    by = f"by a restore from '{found.snapshot}'" if found else "meanwhile: somebody emptied it, or restored it"
    return StoreUnavailable(f"the store was taken over {by}; this restore was given up")
