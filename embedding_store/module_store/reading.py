"""Rows of one table by key, from all of its shards: what each is asked, and the whole of what they answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from embedding_store.contract import U64
from embedding_store.flush_parts import by_shard
from embedding_store.module_store.calls import Answer, Place
from embedding_store.module_store.lookups import lookups, parse_lookups
from embedding_store.module_store.rows_blob import WITH_STATE, WITHOUT_IDS, RowsReply, block_of
from embedding_store.records import Block
from embedding_store.redis_store.resp import Buffer
from embedding_store.spec import TableSpec
from embedding_store.standing import Standings


class Reading:
    """A read of `keys` (n,), repeats allowed."""

    def __init__(self, spec: TableSpec, keys: U64, *, with_state: bool = False, with_ids: bool = True) -> None:
        self._spec, self._with_state = spec, with_state
        self._flags = WITH_STATE * with_state | WITHOUT_IDS * (not with_ids)
        self._order, starts = by_shard(keys, spec.shards)
        ordered = keys[self._order]
        self._mine = [ordered[starts[s] : starts[s + 1]] for s in range(spec.shards)]
        self.places = [Place(spec.name, s) for s in range(spec.shards) if len(self._mine[s])]

    def commands(self, place: Place) -> Sequence[Buffer]:
        """What to ask one of `places`."""
        return lookups(self._spec, place.shard, self._mine[place.shard], self._flags)

    def block(self, answers: Mapping[Place, Answer]) -> tuple[Block, Standings]:
        """Rows in the order of the keys, and how each key stands (n,)."""
        replies: list[RowsReply] = []
        for place in self.places:
            replies += parse_lookups(self._spec, answers[place].replies, len(self._mine[place.shard]), self._flags)
        return block_of(self._spec, replies, self._order, with_state=self._with_state)
