"""How far behind a gradient may be, and what becomes of one that is."""

import numpy as np
import pytest

from embedding_store.contract import Source
from embedding_store.memory import MemoryStore
from ingest.columns import Partition
from tests.trainer import numpy_step
from tests.trainer.group import Member
from tests.trainer.small import MODEL, TOPIC, Click, record
from trainer import learner, worker
from trainer.metrics import Metrics
from trainer.settings import TrainerSettings
from trainer.worker import Worker

START_MS = 1_700_000_000_000
EVENTS = 5  # of a micro-batch


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(learner, "_compile_step", numpy_step.compile_step)


def log_of(partition, events):
    clicks = [Click(START_MS + n, partition, n << 16, 10 * partition + n % 3, 100 + n % 7) for n in range(events)]
    return {Partition(TOPIC, partition): [record(c) for c in clicks]}


def hire(store, partition, events=60, **knobs):
    member = Member(EVENTS, START_MS)
    member.tell(log_of(partition, events))
    values = {"replay": 0, "group": 16, "evaluate_share": 0.0, "reconcile_every_s": 3600, **knobs}
    metrics = Metrics()
    return Worker(store, member, MODEL, TrainerSettings.model_validate(values), metrics), metrics


def sample(metrics, name):
    return metrics.registry.get_sample_value(f"towline_trainer_{name}")


def clocks(store):
    return {s.clock for s in store.status("item")}


def test_staleness_is_what_others_applied_between_read_and_apply():
    store = MemoryStore()
    ours, metrics = hire(store, 0, apply_every=2, max_staleness_events=10_000)  # without a bound it is a sample
    others, _ = hire(store, 1)
    ours.step()
    for _ in range(3):
        others.step()
    ours.step()
    assert clocks(store) == {5 * EVENTS}
    # the first micro-batch was read before the others' 15 events, the second after them
    assert sample(metrics, "staleness_events_sum") == 3 * EVENTS
    assert sample(metrics, "staleness_events_count") == 2


def test_half_of_the_bound_flushes_at_once():
    store = MemoryStore()
    ours, _ = hire(store, 0, apply_every=100, max_staleness_events=20)
    others, _ = hire(store, 1)
    ours.step()
    others.step()
    ours.step()
    assert clocks(store) == {EVENTS}  # 5 events behind: not half of it yet
    others.step()
    others.step()
    ours.step()
    assert clocks(store) == {6 * EVENTS}


def test_past_the_bound_the_gradient_is_learned_anew_and_the_events_count_once():
    store = MemoryStore()
    ours, metrics = hire(store, 0, apply_every=2, max_staleness_events=10)
    others, _ = hire(store, 1)
    ours.step()
    for _ in range(4):
        others.step()
    ours.step()
    assert sample(metrics, "relearned_total") == 1
    assert sample(metrics, "too_stale_total") == 0
    assert sample(metrics, "staleness_events_sum") == 0
    assert clocks(store) == {6 * EVENTS}
    counts = store.changes("history", None).rows.count
    assert counts.sum() == 6 * EVENTS


def test_a_gradient_that_can_not_be_fresh_is_left_out_and_its_events_are_not():
    store = MemoryStore()
    ours, metrics = hire(store, 0, apply_every=2, max_staleness_events=4)
    others, _ = hire(store, 1, events=1000)
    read = ours._reader.read

    def slow(*args, **kwargs):
        others.step()
        return read(*args, **kwargs)

    ours._reader.read = slow
    before = store.changes
    ours.step()
    ours.step()
    assert sample(metrics, "too_stale_total") == 2
    assert before("history", None).rows.count.sum() == clocks(store).pop()
    assert store.status("item")[0].offsets[Source(TOPIC, 0)] == 2 * EVENTS


def test_correction_divides_by_staleness_in_calls():
    vectors = []
    for correction in (False, True):
        store = MemoryStore()
        ours, _ = hire(store, 0, events=EVENTS, staleness_correction=correction)
        others, _ = hire(store, 1)
        seen = []
        flush = ours._pending.flush

        def keep(*args, flush=flush, seen=seen):
            made = flush(*args)
            if made.gradients is not None:
                seen.append(made.gradients)
            return made

        ours._pending.flush = keep
        read = ours._reader.read

        def read_then_wait(*args, others=others, read=read, **kwargs):
            out = read(*args, **kwargs)
            for _ in range(3):
                others.step()
            return out

        ours._reader.read = read_then_wait
        ours.step()
        vectors.append(seen[0])
    assert np.abs(vectors[0]).max() > 0
    np.testing.assert_allclose(vectors[1], vectors[0] / 3, rtol=1e-6)


def test_apply_every_ms_flushes_when_the_first_has_waited_so_long(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(worker.time, "monotonic", lambda: now[0])
    store = MemoryStore()
    ours, _ = hire(store, 0, apply_every=1000, apply_every_ms=500)
    ours.step()
    now[0] += 0.4
    ours.step()
    assert clocks(store) == {0}
    now[0] += 0.2
    ours.step()
    assert clocks(store) == {3 * EVENTS}


def test_apply_every_ms_holds_on_a_quiet_stream_too(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(worker.time, "monotonic", lambda: now[0])
    store = MemoryStore()
    ours, _ = hire(store, 0, events=EVENTS, apply_every=1000, apply_every_ms=500)
    ours.step()
    ours.step()  # nothing came
    assert clocks(store) == {0}
    now[0] += 0.6
    ours.step()
    assert clocks(store) == {EVENTS}
