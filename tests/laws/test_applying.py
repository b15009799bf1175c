"""Apply: what is merged, what is refused, and that a refusal changes nothing."""

import threading

import numpy as np
import pytest

from embedding_store.contract import Range, Source
from embedding_store.errors import BadRequest, GenerationError, UnknownTable
from embedding_store.memory import MemoryStore
from embedding_store.spec import Adagrad, Add, Sgd, TableSpec
from tests.flushes import SOURCE, begin, contents, flush_of, outcomes, whole_state

SUMS = TableSpec(name="sums", dim=3, shards=3, optimizer=Add())


def test_the_four_cells_merge(opener):
    """{stored, missing} × {the client saw it, it did not}: the sum of all gradients, on top of the initial vector."""
    one, two = opener(), opener()
    spec = begin(one, TableSpec(name="item", dim=2, shards=2, initial_std=0.1, optimizer=Sgd(learning_rate=0.5)))
    stored, missing = 5, 6
    initial = one.lookup(spec.name, np.array([stored, missing], np.uint64)).vectors
    one.apply(spec.name, flush_of([stored], 0, 1, gradients=[[1, 2]]))
    two.lookup(spec.name, np.array([missing], np.uint64))  # two saw the missing row, not the stored one
    two.apply(spec.name, flush_of([stored, missing], 1, 2, gradients=[[1, 0], [4, 4]]))
    one.lookup(spec.name, np.array([stored], np.uint64))  # one saw the stored row, and not that `missing` is there now
    one.apply(spec.name, flush_of([stored, missing], 2, 3, gradients=[[0, 2], [2, 2]]))
    rows = one.lookup(spec.name, np.array([stored, missing], np.uint64))
    np.testing.assert_allclose(rows.vectors, initial - 0.5 * np.array([[2, 4], [6, 6]]), rtol=1e-6)
    assert rows.found.all()
    assert rows.count.tolist() == [0, 0]
    assert rows.clock.tolist() == [3, 3]


def test_adagrad_state_is_in_the_row(store):
    begin(store, TableSpec(name="item", dim=2, optimizer=Adagrad(learning_rate=0.1, initial_accumulator=0.5)))
    w, s = np.zeros((1, 2)), np.full((1, 2), 0.5)
    for i in range(4):
        g = np.array([[i - 1.0, 2.0]])
        s = s + g**2
        w = w - 0.1 * g / (np.sqrt(s) + 1e-7)
        store.apply("item", flush_of([9], i, i + 1, gradients=g))
    rows = store.lookup("item", np.array([9], np.uint64), with_state=True)
    np.testing.assert_allclose(rows.vectors, w, rtol=1e-5)
    np.testing.assert_allclose(rows.state, s, rtol=1e-6)


def test_only_touched_keys_are_stored(store):
    begin(store, SUMS)
    store.apply("sums", flush_of([1, 2, 3], 0, 3, gradients=[[0, 0, 0], [0, 1, 0], [0, 0, 0]], counts=[0, 0, 2]))
    assert sorted(contents(store, "sums")) == [2, 3]
    before = contents(store, "sums")
    store.apply("sums", flush_of([2, 3], 3, 4, gradients=np.zeros((2, 3))))
    assert contents(store, "sums") == before


def test_own_events_move_the_statistics(store):
    begin(store, TableSpec(name="item", dim=1, popularity_half_life=10, gap_rate=0.25, shards=1))
    store.apply("item", flush_of([1], 0, 10, counts=[2], positives=[1]))
    store.apply("item", flush_of([1], 10, 20, counts=[1], positives=[3]))
    store.apply("item", flush_of([1], 20, 30, gradients=[[1.0]]))  # another's event: neither count nor clock of it
    rows = store.lookup("item", np.array([1], np.uint64))
    assert (rows.count[0], rows.last_seen[0], rows.clock[0]) == (3, 20, 30)
    assert rows.gap[0] == pytest.approx(0.75 * (10 / 2) + 0.25 * 10)
    assert rows.popularity[0] == pytest.approx(1 * 0.5 + 3)


def test_an_id_is_kept_from_the_first_own_event(store):
    begin(store, SUMS)
    store.apply("sums", flush_of([8], 0, 1, gradients=[[1, 0, 0]]))
    rows = store.lookup("sums", np.array([8], np.uint64))
    assert (rows.ids.tolist(), rows.check.tolist()) == ([b""], [0])
    store.apply("sums", flush_of([8], 1, 2, counts=[1]))
    store.apply("sums", flush_of([8], 2, 3, counts=[1]))
    rows = store.lookup("sums", np.array([8], np.uint64))
    assert (rows.ids.tolist(), rows.check.tolist(), rows.count.tolist()) == ([b"8"], [8], [2])


def test_two_writers_lose_nothing(opener):
    """Each owns a partition; gradients are whole numbers, so the sums are exact in any order."""
    sources = [Source("clicks", 0), Source("clicks", 1)]
    begin(opener(), SUMS, *sources)
    keys = list(range(20))
    faults: list[BaseException] = []

    def write(source: Source) -> None:
        try:
            store = opener()
            for i in range(25):
                flush = flush_of(keys, i, i + 1, gradients=np.ones((20, 3)), counts=[1] * 20, source=source)
                assert outcomes(store.apply("sums", flush)) == {"applied"}
        except BaseException as e:
            faults.append(e)
            raise

    threads = [threading.Thread(target=write, args=(source,)) for source in sources]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not faults
    rows = opener().lookup("sums", np.array(keys, np.uint64))
    assert (rows.vectors == 50).all()
    assert (rows.count == 50).all()
    for shard in opener().status("sums"):
        assert (shard.clock, dict(shard.offsets)) == (50, {sources[0]: 25, sources[1]: 25})


def test_a_repeat_is_a_duplicate(store):
    begin(store, SUMS)
    flush = flush_of([1, 2], 0, 5, gradients=np.ones((2, 3)), counts=[1, 1])
    first = store.apply("sums", flush)
    before = whole_state(store, "sums")
    again = store.apply("sums", flush)
    assert (outcomes(first), outcomes(again)) == ({"applied"}, {"duplicate"})
    assert all(r.offsets == {SOURCE: 5} and r.clock == 5 for r in (*first, *again))
    assert outcomes(store.apply("sums", flush_of([1], 2, 4, gradients=[[1, 1, 1]]))) == {"duplicate"}
    assert whole_state(store, "sums") == before


@pytest.mark.parametrize(
    "ranges",
    [
        (Range(SOURCE, 6, 9),),  # a gap
        (Range(SOURCE, 4, 9),),  # an overlap
        (Range(SOURCE, 5, 9), Range(Source("clicks", 1), 0, 1)),  # one source unset
        (Range(SOURCE, 5, 9), Range(Source("views", 0), 0, 4)),  # one fits, one is a repeat
        (Range(Source("clicks-2", 0), 5, 9),),  # the topic was made anew
    ],
)
def test_a_conflict_changes_nothing(store, ranges):
    begin(store, SUMS, SOURCE, Source("views", 0))
    store.apply("sums", flush_of([1], 0, 5, gradients=[[1, 1, 1]], source=SOURCE))
    store.apply("sums", flush_of([1], 0, 5, gradients=[[1, 1, 1]], source=Source("views", 0)))
    before = whole_state(store, "sums")
    replies = store.apply("sums", flush_of([1, 2], 5, 9, gradients=np.ones((2, 3)), ranges=ranges, forget=[1]))
    assert outcomes(replies) == {"conflict"}
    stored = {SOURCE: 5, Source("views", 0): 5}
    asked = {r.source for r in ranges}
    assert all(r.offsets == {s: o for s, o in stored.items() if s in asked} for r in replies)
    assert whole_state(store, "sums") == before


def test_a_shard_that_is_behind_takes_what_the_others_have(store):
    """A replay of the gap to a table whose shards differ: each decides for itself."""
    store.create(SUMS)
    for shard, offset in enumerate([5, 0, 5]):
        store.seek("sums", shard, SOURCE, None, offset, "test")
    replies = store.apply("sums", flush_of(list(range(30)), 0, 5, gradients=np.ones((30, 3))))
    assert [r.outcome for r in replies] == ["duplicate", "applied", "duplicate"]
    assert [s.rows > 0 for s in store.status("sums")] == [False, True, False]


def test_tables_that_are_called_together_are_as_if_alone(opener):
    """Applied, duplicate and conflict in one call: each table's shards answer and hold what they do by themselves."""
    tables = [SUMS.model_copy(update={"name": name, "shards": n}) for name, n in (("one", 2), ("two", 3), ("three", 1))]
    store, reference = opener(), MemoryStore()
    for each in (store, reference):
        for spec in tables:
            begin(each, spec)
        each.apply("two", flush_of([1], 0, 5, gradients=[[1, 1, 1]]))
        each.apply("three", flush_of([1], 0, 3, gradients=[[1, 1, 1]]))
    flush = flush_of(list(range(20)), 0, 5, gradients=np.ones((20, 3)), counts=[1] * 20)
    replies = store.apply_all({spec.name: flush for spec in tables})
    assert {name: outcomes(told) for name, told in replies.items()} == {
        "one": {"applied"}, "two": {"duplicate"}, "three": {"conflict"},
    }  # fmt: skip
    for spec in tables:
        assert replies[spec.name] == reference.apply(spec.name, flush)
        assert contents(store, spec.name) == contents(reference, spec.name)


def test_of_tables_that_are_called_together_none_is_called_if_one_is_refused(store):
    begin(store, SUMS)
    begin(store, SUMS.model_copy(update={"name": "other"}))
    good = flush_of([1], 0, 1, gradients=[[1, 1, 1]])
    with pytest.raises(BadRequest, match="other"):
        store.apply_all({"sums": good, "other": flush_of([1, 1], 0, 1)})
    with pytest.raises(UnknownTable):
        store.apply_all({"sums": good, "none": good})
    assert not store.status("sums")[0].clock
    assert outcomes(store.apply("sums", good)) == {"applied"}


def test_several_sources_move_together(store):
    other = Source("views", 3)
    begin(store, SUMS, SOURCE, other)
    ranges = (Range(SOURCE, 0, 2), Range(other, 0, 7))
    replies = store.apply("sums", flush_of([], 0, 0, gradients=np.zeros((0, 3)), ranges=ranges, events=6))
    assert all(r.outcome == "applied" and r.clock == 6 and r.offsets == {SOURCE: 2, other: 7} for r in replies)


def test_offsets_and_clock_move_without_rows(store):
    begin(store, SUMS)
    cursor = store.changes("sums", None).cursor
    replies = store.apply("sums", flush_of([], 0, 10, events=8, event_time_ms=77))
    assert all(r.outcome == "applied" and r.clock == 8 and r.offsets == {SOURCE: 10} for r in replies)
    assert all((s.event_time_ms, s.rows) == (77, 0) for s in store.status("sums"))
    changes = store.changes("sums", cursor)
    assert (changes.rescan, len(changes.keys), changes.event_time_ms) == (False, 0, 77)


def test_another_generation_is_refused(opener):
    store = opener()
    begin(store, SUMS)
    assert store.raise_generation() == 1
    store.create(SUMS.model_copy(update={"name": "later"}))
    assert opener().generation() == 1
    assert {s.generation for name in ("sums", "later") for s in store.status(name)} == {1}
    before = whole_state(store, "sums")
    for generation in (0, 2):
        with pytest.raises(GenerationError, match="generation 1"):
            store.apply("sums", flush_of([1], 0, 1, gradients=[[1, 1, 1]], generation=generation))
    assert whole_state(store, "sums") == before
    assert outcomes(store.apply("sums", flush_of([1], 0, 1, gradients=[[1, 1, 1]], generation=1))) == {"applied"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gradients": np.ones((2, 4))}, r"holds 3-d float32 rows.*got float32 \(2, 4\)"),
        ({"gradients": [[1, np.nan, 0], [0, 0, 0]]}, "gradients must be finite"),
        ({"gradients": [[1e30, 0, 0], [0, 0, 0]]}, "at most 1e"),
        ({"counts": [-1, 0]}, "counts must lie in"),
        ({"counts": [2, 0]}, "counts must lie in"),
        ({"positives": [np.inf, 0]}, "positives must be finite"),
        ({"appends": [(0, 1, 2, 3, 0, 1.0)]}, "has no sequences"),
        ({"ranges": ()}, "flush without ranges"),
        ({"ranges": (Range(SOURCE, 3, 3),)}, "is empty or negative"),
        ({"ranges": (Range(SOURCE, 0, 1), Range(SOURCE, 1, 2))}, "two ranges"),
        ({"events": -1}, "events must be in"),
    ],
)
def test_a_bad_call_changes_nothing(store, change, message):
    begin(store, SUMS)
    before = whole_state(store, "sums")
    with pytest.raises(BadRequest, match=message):
        store.apply("sums", flush_of([1, 2], 0, 1, **change))
    with pytest.raises(BadRequest, match="duplicate keys in a flush, 1 for one"):
        store.apply("sums", flush_of([1, 1], 0, 1))
    assert whole_state(store, "sums") == before
