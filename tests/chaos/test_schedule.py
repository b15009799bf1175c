"""What is to happen follows from the seed."""

from itertools import islice

from tests.chaos.schedule import KINDS, faults
from tests.chaos.stream import Stream, partition_of


def test_faults_follow_from_the_seed():
    first, again, other = (list(islice(faults(seed, 3), 200)) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert [fault.number for fault in first] == list(range(200))


def test_every_kind_is_among_the_first_and_goes_on_occurring():
    drawn = list(islice(faults(3, 3), 300))
    assert {fault.kind for fault in drawn[: len(KINDS)]} == set(KINDS)
    assert {fault.kind for fault in drawn[len(KINDS) :]} == set(KINDS)
    assert {fault.trainer for fault in drawn} == {-1, 0, 1, 2}


def test_events_follow_from_the_seed_and_users_stay_in_their_partition():
    one, again = Stream(5, 40, 30), Stream(5, 40, 30)
    records = [one.next() for _ in range(500)]
    assert records == [again.next() for _ in range(500)]
    assert any(record.events == 0 for record in records)
    assert any(record.events > 1 for record in records)
    for record in records:
        assert record.partition == partition_of(record.key.decode())
