"""Who gets which partition: sticky, and cooperative, so that a partition which stays where it is never stops.

kafka-python 3.0.12's own `CooperativeStickyAssignor` is almost that. It tells the leader that a member owns what it was
last assigned, also when the member has lost it since: after a pause past its session it claims partitions that are
nobody's, or another's. The leader takes such a partition for one that is moving, gives it to nobody in this round, and
waits for the claimant to revoke it; but the claimant has nothing to revoke, so no second round follows and the
partition stays without an owner. Here a member claims what it owns.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from kafka import TopicPartition
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor


class OwnersAssignor(CooperativeStickyAssignor):  # type: ignore[misc]  # kafka-python has no types
    """The client's cooperative-sticky assignor, claiming exactly what `owned` says at the moment of joining."""

    def __init__(self, owned: Callable[[], Collection[TopicPartition]]) -> None:
        super().__init__()
        self._owned = owned

    def metadata(self, topics: Collection[str]) -> Any:
        """What is sent with a JoinGroup: topics, and the partitions owned now."""
        self.member_assignment = sorted(self._owned())
        return super().metadata(topics)
