"""Packing by count, size and time: every event once, in order within its partition."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ingest.packing import Packer, PackLimits


@given(
    st.lists(st.tuples(st.integers(0, 2), st.lists(st.binary(max_size=12), max_size=9))),
    st.integers(1, 5),
    st.integers(1, 30),
)
def test_every_event_once_and_in_order(runs: list[tuple[int, list[bytes]]], most: int, size: int) -> None:
    packer = Packer(PackLimits(most, size, linger_s=2.0))
    sent: dict[int, list[list[bytes]]] = {0: [], 1: [], 2: []}
    for now_s, (partition, events) in enumerate(runs):
        sent[partition] += packer.add(partition, events, now_s)
        for number, pack in packer.due(now_s):
            sent[number].append(pack)
        wait_s = packer.wait_s(now_s)
        assert wait_s is None or 0 < wait_s <= 2.0
    for number, pack in packer.rest():
        sent[number].append(pack)
    assert packer.wait_s(0.0) is None
    for partition, packs in sent.items():
        assert [e for pack in packs for e in pack] == [e for p, events in runs if p == partition for e in events]
        for pack in packs:
            assert 1 <= len(pack) <= most
            assert len(pack) == 1 or sum(len(event) + 1 for event in pack) <= size


def test_what_waits_is_due_after_the_linger_of_its_first() -> None:
    packer = Packer(PackLimits(events=10, bytes=1000, linger_s=0.5))
    assert not packer.add(3, [b"a"], 10.0)
    assert not packer.add(3, [b"b"], 10.25)
    assert packer.wait_s(10.25) == 0.25
    assert not list(packer.due(10.25))
    assert list(packer.due(10.5)) == [(3, [b"a", b"b"])]
    assert packer.wait_s(10.5) is None
