"""Why an event of an id is not there, or that nothing is missing. Pure: from the facts, most likely reason first."""

from __future__ import annotations

from collections.abc import Iterable

from embedding_store.contract import Range, Source
from infra.inspection.facts import Facts
from ingest.topic_search import Found, Sighting


def waiting(facts: Facts) -> list[Sighting]:
    """Usable records that the id's shard has not applied yet."""
    return [one for one in _usable(facts) if one.offset >= _offset(facts, one) and not _excluded(facts, one)]


def reasons(facts: Facts) -> list[str]:
    """One sentence each, with the remedy where there is one."""
    out = list(_of_the_store(facts))
    if facts.found is None:
        return [*out, f"the topic can't be asked, so what was produced is not known: {facts.away}"]
    out += _of_the_topic(facts, facts.found)
    learned = [one for one in _usable(facts) if one.offset < _offset(facts, one) and not _excluded(facts, one)]
    if learned and facts.row is None and not facts.taken:
        out.append(_gone(facts, learned))
    if not facts.found.sightings and facts.row is None:
        out.append(
            f"no event of {facts.tower} {facts.identity!r} is among {_searched(facts.found)}: it was not produced to "
            f"{facts.topic!r}, or longer ago (--newest), or under another id: ids are compared byte by byte, and only "
            "the decimal form of an integer is the integer"
        )
    if not out:
        out.append("nothing is missing: all events of it that were found are learned")
    return out


def _of_the_store(facts: Facts) -> Iterable[str]:
    if facts.taken:
        yield (
            f"its key {facts.key} is taken by another id: its events are refused and go to the dead letters; "
            "rename one of the two"
        )


def _of_the_topic(facts: Facts, found: Found) -> Iterable[str]:
    known = {source.topic_id for source in facts.status.offsets}
    unknown = [partition for partition in found.bounds if Source(*partition) not in facts.status.offsets]
    if unknown and not known & {partition.topic_id for partition in found.bounds}:
        have = ", ".join(sorted(known)) or "none"
        yield (
            f"its shard has learned from other topics only ({have}), not from {unknown[0].topic_id}: no trainer has "
            "read this topic yet, or it was made anew"
        )
    if wait := waiting(facts):
        lag = sum(max(0, end - _at(facts, Source(*p))) for p, (_, end) in found.bounds.items())
        newest = wait[-1]
        yield (
            f"{_events(len(wait))} of it are produced and not learned yet, the newest at partition {newest.partition} "
            f"offset {newest.offset}: its shard is {lag} records behind; is a trainer running, and not held up?"
        )
    if left_out := [one for one in _usable(facts) if _excluded(facts, one)]:
        ranges = sorted({str(_shown(one)) for event in left_out if (one := _excluded(facts, event))})
        yield f"{_events(len(left_out))} of it are in excluded records ({', '.join(ranges)}), which nobody learns"
    refused = [one for one in found.sightings if one.refused]
    if refused:
        last = refused[-1]
        yield (
            f"{_events(len(refused))} that seem to be of it went to the dead letters, the newest, at partition "
            f"{last.partition} offset {last.offset}, as {last.refused}"
        )
    if tombstones := [one for one in found.sightings if one.tombstone]:
        last = tombstones[-1]
        yield (
            f"it was to be forgotten: a tombstone at partition {last.partition} offset {last.offset}; events before it "
            "don't count"
        )
    cut = [p for p, (_, to) in found.searched.items() if to < found.bounds[p][1]]
    if cut:
        yield f"the search ended for time before the end of partition {cut[0].number}: there may be more (--timeout)"


def _gone(facts: Facts, learned: list[Sighting]) -> str:
    spec, status = facts.spec, facts.status
    said = f"{_events(len(learned))} of it were read by its shard, and there is no row: "
    if spec.admit_after:
        return said + f"it gets one after {spec.admit_after} events (admit_after), of which these are counted"
    if any(one.tombstone for one in facts.found.sightings) if facts.found else False:
        return said + "it was forgotten"
    lost = {"evicted": status.evicted, "expired": status.expired, "forgotten": status.forgotten}
    counted = ", ".join(f"{count} {name}" for name, count in lost.items() if count)
    if counted:
        return said + f"of the rows that the shard ever had, {counted} (max_rows {spec.max_rows}, ttl_s {spec.ttl_s})"
    return said + "they came before what the store was restored to, or it lost them: `towline status` and trainer logs"


def _usable(facts: Facts) -> list[Sighting]:
    return [one for one in facts.found.sightings if not one.refused and not one.tombstone] if facts.found else []


def _source(facts: Facts, one: Sighting) -> Source:
    assert facts.found is not None  # noqa: S101  there is a sighting
    return next(Source(*partition) for partition in facts.found.bounds if partition.number == one.partition)


def _offset(facts: Facts, one: Sighting) -> int:
    return _at(facts, _source(facts, one))


def _at(facts: Facts, source: Source) -> int:
    return facts.status.offsets.get(source, 0)


def _excluded(facts: Facts, one: Sighting) -> Range | None:
    source = _source(facts, one)
    return next((r for r in facts.excluded if r.source == source and r.start <= one.offset < r.stop), None)


def _shown(excluded: Range) -> str:
    return f"{excluded.source.partition}:{excluded.start}-{excluded.stop - 1}"


def _searched(found: Found) -> str:
    records = sum(to - start for start, to in found.searched.values())
    return f"the newest {records} records of the topic's {len(found.bounds)} partitions"


def _events(count: int) -> str:
    return "1 event" if count == 1 else f"{count} events"
