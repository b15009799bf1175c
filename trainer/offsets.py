"""Where a source is to be continued in every shard, and what is to be told of it. Pure.

Normally each shard goes on from where it stands. What else there may be:

kind           found by                                            what is done
retention      stored < earliest kept                               on_lost_offsets: go on at the earliest, or stop
truncated      the log ends below a stored offset: an unclean       on_lost_offsets: go on at its end, and so learn
               leader election, or a broker's restored backup       what is written there now; or stop
lost_shard     one shard of a table doesn't know the source,        on_lost_shard: replay the stream for this shard,
               though another of the table has learned from it      the others seeing repeats; or stop
new_table      no shard of a table knows it, those of others do     join where the lowest of the others stands
new_partition  nobody knows it, but others of the topic are known   its earliest record
first_start    nobody knows it                                      its earliest record
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from ingest.contract import StreamMisconfigured

Kind = Literal["retention", "truncated", "lost_shard", "new_table", "new_partition", "first_start"]


class OffsetsRefused(StreamMisconfigured):
    """A policy says that a person has to decide how a source is continued. Nothing was changed."""


@dataclass(frozen=True, slots=True)
class OffsetPolicy:
    """What to do where events are gone; see `[ingest]`."""

    on_lost_offsets: Literal["continue", "stop"] = "continue"
    on_lost_shard: Literal["replay", "continue", "stop"] = "replay"


class Shard(NamedTuple):
    """One shard of a table."""

    table: str
    number: int


class Move(NamedTuple):
    """A seek to be made."""

    shard: Shard
    expected: int | None
    new: int
    reason: str


class Finding(NamedTuple):
    """Something to be told and counted. records: how many are gone, or are no longer where they were learned from."""

    kind: Kind
    records: int
    text: str
    alarming: bool


@dataclass(frozen=True, slots=True)
class Settlement:
    """offsets: where each shard stands once `moves` are made."""

    offsets: Mapping[Shard, int]
    moves: tuple[Move, ...]
    findings: tuple[Finding, ...]


def settle(
    name: str,
    stored: Mapping[Shard, int | None],
    earliest: int,
    end: int,
    policy: OffsetPolicy,
    *,
    topic_is_known: bool = False,
) -> Settlement:
    """Continue the source called `name`, whose log is [earliest, end). topic_is_known: other partitions of it are.

    Raises OffsetsRefused.
    """
    known = [offset for offset in stored.values() if offset is not None]
    if not known:
        kind: Kind = "new_partition" if topic_is_known else "first_start"
        text = f"{name} is new and begins at its earliest record, offset {earliest}"
        return _moved(stored, dict.fromkeys(stored, earliest), {}, (Finding(kind, 0, text, alarming=False),), kind)
    goals: dict[Shard, int] = {}
    reasons: dict[Shard, str] = {}
    findings: list[Finding] = []
    low, high = min(known), max(known)
    if high > end:
        findings.append(
            Finding("truncated", high - end, f"{name} was cut: it ends at offset {end}, and was learned up to {high}; "
                    f"the {high - end} records between are gone, and others will take their place", alarming=True)
        )  # fmt: skip
    if low < earliest:
        findings.append(
            Finding("retention", earliest - low, f"{earliest - low} records of {name} are gone: retention removed them "
                    f"before they were learned everywhere; {low} is wanted, {earliest} is the earliest kept",
                    alarming=True)
        )  # fmt: skip
    if findings and policy.on_lost_offsets == "stop":
        raise OffsetsRefused(
            f'{findings[0].text}. Restore the records, or set [ingest] on_lost_offsets = "continue" to go on without'
        )
    for shard, offset in stored.items():
        if offset is None:
            continue
        goals[shard] = min(max(offset, earliest), max(end, earliest))
        reasons[shard] = "log was cut" if offset > end else "lost to retention"
    for table in {shard.table for shard in stored}:
        missing = [shard for shard, offset in stored.items() if shard.table == table and offset is None]
        if not missing:
            continue
        others = [offset for shard, offset in stored.items() if shard.table == table and offset is not None]
        if not others and low > earliest:
            start, reason = min(goals.values()), "new table"
            text = (
                f"table '{table}' is new to {name} and begins at offset {start}, where the lowest of the others stands"
            )
            findings.append(Finding("new_table", 0, text, alarming=False))
        elif high <= earliest:  # a first start that was interrupted: nobody has learned anything
            start, reason = earliest, "first start"
        else:
            finding = _lost_shards(name, table, missing, earliest, high, policy)
            findings.append(finding)
            start, reason = earliest, "lost shard"
        goals |= dict.fromkeys(missing, start)
        reasons |= dict.fromkeys(missing, reason)
    return _moved(stored, goals, reasons, tuple(findings), "")


def _lost_shards(
    name: str, table: str, missing: list[Shard], earliest: int, high: int, policy: OffsetPolicy
) -> Finding:
    which = f"shard{'s' * (len(missing) > 1)} {', '.join(str(shard.number) for shard in missing)} of table '{table}'"
    lost = f"{which} lost what was learned from {name}, up to offset {high}"
    if policy.on_lost_shard == "stop":
        raise OffsetsRefused(
            f'{lost}. Restore the store, or set [ingest] on_lost_shard = "replay" to learn it again from the broker'
        )
    if policy.on_lost_shard == "replay" and earliest > 0:
        raise OffsetsRefused(
            f"{lost}, and the broker holds no more than offsets {earliest} and up: counts would be too low. Restore "
            f'the store, or set [ingest] on_lost_shard = "continue" to learn again what the broker holds'
        )
    gone = f"; the {earliest} records before that are gone" if earliest else ", all of it"
    return Finding("lost_shard", earliest, f"{lost}: it is learned again from offset {earliest}{gone}", alarming=True)


def _moved(
    stored: Mapping[Shard, int | None],
    goals: Mapping[Shard, int],
    reasons: Mapping[Shard, str],
    findings: tuple[Finding, ...],
    reason: str,
) -> Settlement:
    moves = tuple(
        Move(shard, offset, goals[shard], reasons.get(shard, reason).replace("_", " "))
        for shard, offset in stored.items()
        if goals[shard] != offset
    )
    return Settlement(dict(goals), moves, findings)
