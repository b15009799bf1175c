"""What `kafka_source` asks of a Kafka client: to be a member of a group that fetches. All else is the source's."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from typing import Protocol

from ingest.fetched import Fetched


class PositionGone(Exception):
    """The partition does not hold the offset that comes next: retention, truncation, or the topic was made anew.

    cut_at: where the log now differs from what was read, if the broker told.
    """

    def __init__(self, number: int, offset: int, cut_at: int | None = None) -> None:
        super().__init__(f"partition {number} does not hold offset {offset}")
        self.number = number
        self.cut_at = cut_at


class NotOwned(Exception):
    """The partition is not this member's (any more)."""


class MemberGone(Exception):
    """The client will never work again, through no fault of the configuration: make another."""


class GroupMember(Protocol):
    """Joins on construction. Every call is bounded by a timeout and raises StreamUnavailable or StreamMisconfigured.

    Rebalances are cooperative (KIP-429): what stays is fetched on while the group rebalances; what was taken is told to
    the caller, and only once the caller has accepted that does the member join again and so let it go.

    Committed offsets are never read back, and no offset is ever reset by the client: positions are set by `seek`, and
    an offset that is gone raises. Not thread-safe.
    """

    @property
    def rebalances(self) -> int:
        """Rises with every partition given or taken."""

    def owned(self) -> tuple[int, Mapping[int, int]]:
        """(rebalances, the owned partitions' numbers → the rebalance that gave each)."""

    def accept(self, rebalances: int) -> None:
        """The caller has let go of what was taken up to that rebalance: the group may give it to others."""

    def topic_id(self) -> str:
        """Identity of the topic's present incarnation."""

    def join(self, timeout_s: float) -> None:
        """Take part in the group for a moment, to be given partitions; what is fetched meanwhile is lost: seek.

        Raises MemberGone.
        """

    def earliest(self, numbers: Collection[int]) -> dict[int, int]:
        """The first offset still kept of each."""

    def ends(self, numbers: Collection[int]) -> dict[int, int]:
        """The end of what is committed of each."""

    def seek(self, number: int, offset: int) -> None:
        """Fetch from `offset` next. Raises NotOwned."""

    def fetch(self, numbers: Set[int], timeout_s: float, max_records: int) -> dict[int, tuple[Sequence[Fetched], int]]:
        """(records, position behind them) of exactly these partitions, waiting up to `timeout_s` for the first.

        About max_records of them. The position may advance without records: markers and aborted ones. Partitions that a
        rebalance took meanwhile are left out. Raises NotOwned, PositionGone, MemberGone.
        After any error the positions are to be set anew: the client may have handed out records that were lost with it.
        """

    def commit(self, positions: Mapping[int, int]) -> None:
        """Report to the group, asynchronously; never raises."""

    def close(self, *, leave: bool) -> None:
        """Disconnect, once. A static member stays in the group until its session expires, unless it is to `leave`."""
