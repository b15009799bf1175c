"""Calling many shards at once: all are asked before the first answer is read, and all answers are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from embedding_store.errors import StoreError, StoreFull, StoreUnavailable
from embedding_store.module_store.refusals import is_missing, refused
from embedding_store.redis_store.client import Moved, Refusal, Wire
from embedding_store.redis_store.keys import module_key
from embedding_store.redis_store.registered import place_of
from embedding_store.redis_store.resp import Buffer
from embedding_store.redis_store.session import REROUTES, Session
from embedding_store.redis_store.topology import Nodes


class Answer(NamedTuple):
    """What one shard said."""

    run_id: str  # of the server that answered
    replies: list[Any]  # to its commands, in order


class Place(NamedTuple):
    """A shard of a table."""

    table: str
    shard: int

    def __str__(self) -> str:
        return place_of(self.table, self.shard)


Request = Callable[[Place], Sequence[Buffer]]
"""Its commands, one buffer each. Made when they are sent, and again if the shard has to be asked again."""


def ask_shards(
    nodes: Nodes,
    places: Sequence[Place],
    request: Request,
    read: Callable[[Wire], Any] = Wire.read_blobs,
    make: Callable[[Sequence[Place]], None] | None = None,
    again: Callable[[Place, Refusal], bool] = lambda place, refusal: False,  # noqa: ARG005
) -> dict[Place, Answer]:
    """Answers of shards, of one table or of several, each asked on the wire of its node.

    A shard whose Cluster slot has moved is asked again, and so are, once, one whose key the server has lost, after
    `make`, and one of whose refusal `again` says so. A shard that has answered is not. After a refusal by some shards
    all replies have been read: the others have done what they were asked. Raises the first refusal, StoreUnavailable.
    """
    answers: dict[Place, Answer] = {}
    made: set[Place] = set()
    asked = list(places)
    for _ in range(REROUTES):
        moved: list[Place] = []
        lost: list[Place] = []
        repeated: list[Place] = []
        faults: list[StoreError] = []
        with Session(nodes) as session:
            wires = {place: session.shared(module_key(*place)) for place in asked}
            sent: dict[Place, int] = {}
            for place, wire in wires.items():
                commands = request(place)
                wire.send(commands)
                sent[place] = len(commands)
            replies = {place: [read(wire) for _ in range(sent[place])] for place, wire in wires.items()}
        for place, wire in wires.items():
            refusal = next((reply for reply in replies[place] if isinstance(reply, Refusal)), None)
            if refusal is None:
                answers[place] = Answer(wire.run_id, replies[place])
                continue
            fault = refused(refusal, str(place), wire.address)
            if isinstance(fault, Moved):
                moved.append(place)
            elif make is not None and is_missing(refusal) and place not in made:
                lost.append(place)
            elif again(place, refusal):
                repeated.append(place)
            else:
                faults.append(fault)
        if moved or any(isinstance(f, StoreUnavailable) and not isinstance(f, StoreFull) for f in faults):
            nodes.drop()
        if faults:
            raise faults[0]
        if make is not None and lost:
            make(lost)
            made.update(lost)
        asked = moved + lost + repeated
        if not asked:
            return answers
    raise StoreUnavailable(f"shards had to be asked {REROUTES} times during one call: the cluster's slots move; retry")
