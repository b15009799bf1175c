"""The client for loops without a stream: numbered calls, each applied once whatever happens on the way."""

import threading

import numpy as np
import pytest

from embedding_store.errors import BadRequest, CallOutOfTurn, SpecConflict, StoreUnavailable
from embedding_store.spec import Add, TableSpec
from embedding_store.training_client import TrainingClient, keys_of
from native.identity import key_and_check

SPEC = TableSpec(name="item", dim=2, shards=3, optimizer=Add())


class Faulty:
    """A store whose next `apply` calls are lost on the way there, or their answers on the way back."""

    def __init__(self, store, faults):
        self._store, self.faults = store, list(faults)

    def __getattr__(self, name):
        return getattr(self._store, name)

    def apply(self, table, flush):
        fault = self.faults.pop(0) if self.faults else ""
        if fault == "never sent":
            raise StoreUnavailable("lost")
        replies = self._store.apply(table, flush)
        if fault == "answer lost":
            raise StoreUnavailable("lost")
        return replies


class Interrupted:
    """A store whose first `apply` is interrupted after one of its shards: the others see its ranges as conflicts."""

    def __init__(self, store):
        self._store, self._first = store, True

    def __getattr__(self, name):
        return getattr(self._store, name)

    def apply(self, table, flush):
        if not self._first:
            return self._store.apply(table, flush)
        self._first = False
        source, start, _ = flush.ranges[0]
        others = [shard for shard in range(self._store.spec(table).shards) if shard != 1]
        for shard in others:
            self._store.seek(table, shard, source, start, start + 7, "out of the way")
        self._store.apply(table, flush)
        for shard in others:
            self._store.seek(table, shard, source, start + 7, start, "and back")
        raise KeyboardInterrupt


def vectors(store, *ids):
    return store.lookup("item", keys_of(ids)[0]).vectors.tolist()


def test_gradients_of_repeated_ids_are_summed_and_ids_are_kept(store):
    client = TrainingClient(store, "one", [SPEC])
    ids = ["a", 7, "7", "a", np.int64(9)]
    assert client.apply("item", ids, [[1, 0], [2, 0], [4, 0], [8, 0], [0, 1]]) == "applied"
    rows = client.lookup("item", ["a", "7", 9, "never"])
    assert rows.vectors.tolist() == [[9, 0], [6, 0], [0, 1], [0, 0]]
    assert rows.count.tolist() == [2, 2, 1, 0]
    assert rows.ids.tolist() == [b"a", b"7", b"9", b""]
    assert rows.check[0] == key_and_check(b"a")[1]
    assert {s.clock for s in store.status("item")} == {5}
    client.apply("item", np.array([7]), [[1, 1]], own=False, events=100)
    rows = client.lookup("item", [7])
    assert (rows.vectors.tolist(), rows.count.tolist(), store.status("item")[0].clock) == ([[7, 1]], [2], 105)


@pytest.mark.parametrize("faults", [["never sent"], ["answer lost"], ["answer lost", "never sent", "answer lost"]])
def test_a_call_that_was_lost_is_sent_again_and_applied_once(store, faults):
    faulty = Faulty(store, faults)
    client = TrainingClient(faulty, "one", [SPEC], patience_s=20)
    client.apply("item", ["a"], [[1, 1]])
    client.apply("item", ["a"], [[1, 1]])
    assert (vectors(store, "a"), faulty.faults, client.next_call("item")) == ([[2, 2]], [], 2)


@pytest.mark.parametrize("fault", ["never sent", "answer lost"])
def test_after_the_patience_is_over_the_call_is_finished_first(store, fault):
    client = TrainingClient(Faulty(store, [fault, fault]), "one", [SPEC], patience_s=0)
    assert client.finish("item") is None
    with pytest.raises(StoreUnavailable):
        client.apply("item", ["a"], [[1, 1]])
    with pytest.raises(CallOutOfTurn, match=r"finish\('item'\) sends it again"):
        client.apply("item", ["b"], [[1, 1]])
    with pytest.raises(StoreUnavailable):
        client.finish("item")
    assert client.apply("item", ["ignored"], [[5, 5]], call=0) in ("applied", "duplicate")  # what was kept is sent
    assert client.apply("item", ["a"], [[1, 1]]) == "applied"
    assert vectors(store, "a", "b", "ignored") == [[2, 2], [0, 0], [0, 0]]


def test_a_call_that_was_interrupted_is_finished_first(opener):
    """Ctrl-C in a notebook, while one shard alone has the call: the next one must not take its number."""
    store = opener()
    client = TrainingClient(Interrupted(store), "one", [SPEC])
    ids = list(range(20))
    with pytest.raises(KeyboardInterrupt):
        client.apply("item", ids, np.ones((20, 2)))
    with pytest.raises(CallOutOfTurn, match=r"finish\('item'\) sends it again"):
        client.apply("item", ids, np.ones((20, 2)))
    assert client.finish("item") == "applied"
    assert client.apply("item", ids, np.ones((20, 2))) == "applied"
    assert vectors(store, *ids) == [[2, 2]] * 20


def test_two_loops_of_one_name_that_meet_shard_by_shard_are_told(opener):
    """Each has the call in some of the shards: neither was applied whole, and neither may be told so."""
    store = opener()
    client = TrainingClient(store, "one", [SPEC])
    source = next(iter(store.status("item")[0].offsets))
    store.seek("item", 1, source, 0, 1, "as if another loop's call 0 had come first there")
    with pytest.raises(CallOutOfTurn, match="another loop uses the same name"):
        client.apply("item", list(range(20)), np.ones((20, 2)))


def test_a_loop_that_comes_back_repeats_its_calls_by_number(opener):
    first = TrainingClient(opener(), "one", [SPEC])
    for call in range(3):
        first.apply("item", [call], [[1, 1]], call=call)
    again = TrainingClient(opener(), "one", [SPEC])
    assert again.next_call("item") == 3
    assert again.apply("item", [1], [[1, 1]], call=1) == "duplicate"  # back to a checkpoint
    assert again.apply("item", [3], [[1, 1]], call=3) == "applied"
    with pytest.raises(CallOutOfTurn, match="waits for call 4 of client:one, got call 6"):
        again.apply("item", [3], [[1, 1]], call=6)
    with pytest.raises(CallOutOfTurn, match="another loop uses the same name"):
        first.apply("item", [9], [[1, 1]])  # its call 3 was made by another
    assert vectors(opener(), 0, 1, 2, 3, 9) == [[1, 1]] * 4 + [[0, 0]]


@pytest.mark.parametrize("replays", [False, True])
def test_a_loop_that_died_between_shards(opener, replays):
    """One shard has its last call, the others have not."""
    store = opener()
    client = TrainingClient(store, "one", [SPEC])
    ids = list(range(20))
    client.apply("item", ids, np.ones((20, 2)))
    source = next(iter(store.status("item")[0].offsets))
    store.seek("item", 1, source, 1, 2, "as if it alone had applied call 1")
    again = TrainingClient(opener(), "one", [SPEC], replays=replays)
    assert again.next_call("item") == (1 if replays else 2)
    again.apply("item", ids, np.ones((20, 2)))
    again.apply("item", ids, np.ones((20, 2)))
    shards = store.status("item")
    assert {s.offsets[source] for s in shards} == ({3} if replays else {4})
    assert [s.skipped for s in shards] == ([0, 1, 0] if replays else [1, 1, 1])


def test_clients_write_at_once(opener):
    """Every client has calls of its own; nothing is lost between them."""
    faults = []

    def work(name):
        try:
            client = TrainingClient(opener(), name, [SPEC])
            for _ in range(15):
                client.apply("item", list(range(30)), np.ones((30, 2)))
        except BaseException as e:
            faults.append(e)
            raise

    threads = [threading.Thread(target=work, args=(f"client-{i}",)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not faults
    assert vectors(opener(), *range(30)) == [[45, 45]] * 30


def test_bad_calls_change_nothing_and_are_not_numbered(store):
    with pytest.raises(BadRequest, match="needs a name"):
        TrainingClient(store, "", [SPEC])
    client = TrainingClient(store, "one", [SPEC])
    for ids, gradients, message in (
        (["a"], [[1, 1, 1]], r"holds 2-d rows: gradients of 1 ids must be \(1, 2\), got \(1, 3\)"),
        (["a"], [[np.nan, 1]], "must be finite"),
        ([1.5], [[1, 1]], r"strings or integers, got 1\.5 of type float"),
        ([None], [[1, 1]], "got None"),
        ([True], [[1, 1]], "got True of type bool"),
        (np.ones(1), [[1, 1]], r"got float64 \(1,\)"),
        (["x" * 600], [[1, 1]], "600 bytes"),
        ("ab", [[1, 1], [1, 1]], "ids must be a list or an array of ids, got 'ab' of type str"),
        (5, [[1, 1]], "ids must be a list or an array of ids, got 5 of type int"),
        ([""], [[1, 1]], "an id must not be empty"),
        (["\ud800"], [[1, 1]], "id '.ud800' is no text that UTF-8 can write"),
        (["a", "b"], [[1, 1], [1]], "gradients of table 'item' must be numbers"),
        (["a"], [[1e300, 1]], "must be finite"),
    ):
        with pytest.raises(BadRequest, match=message):
            client.apply("item", ids, gradients)
    for events in (1.5, "1", -1):
        with pytest.raises(BadRequest, match=f"events must be .* got {events!r}"):
            client.apply("item", ["a"], [[1, 1]], events=events)
    with pytest.raises(BadRequest, match="was not given table 'user', only item"):
        client.apply("user", ["a"], [[1, 1]])
    with pytest.raises(SpecConflict, match="dim is 2, got 3"):
        TrainingClient(store, "two", [SPEC.model_copy(update={"dim": 3})])
    assert client.apply("item", [], np.zeros((0, 2))) == "applied"
    assert (client.next_call("item"), sum(s.rows for s in store.status("item"))) == (1, 0)


@pytest.mark.parametrize("dtype", [np.int64, np.uint64, np.int32, np.uint8, ">i8"])
def test_arrays_of_integers_are_the_ids_that_their_numbers_are(dtype):
    """A column of integers takes a path of its own."""
    info = np.iinfo(dtype)
    ids = np.array([0, 1, 9, 10, 42, info.max, info.min, info.max // 2, 0], dtype)
    for column in (ids, ids[::-2], ids[:0]):
        keys, checks, names = keys_of(column)
        assert names.tolist() == [str(int(i)).encode() for i in column]
        assert [*zip(keys.tolist(), checks.tolist(), strict=True)] == [key_and_check(name) for name in names.tolist()]
