"""Concurrent requests share a piece of work; each gets its own answer or error."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence

import pytest

from serving.offload import Offload
from serving.problems import Problem
from serving.together import Together


class Doubling:
    """Twice each number, once `go` is set; refuses negative ones; breaks on 13."""

    def __init__(self) -> None:
        self.lots: list[list[int]] = []
        self.begun, self.go = threading.Event(), threading.Event()

    def __call__(self, asks: Sequence[int]) -> list[int | Exception]:
        self.lots.append(list(asks))
        self.begun.set()
        assert self.go.wait(10)
        if 13 in asks:
            raise ZeroDivisionError("a bug")
        return [2 * n if n >= 0 else Problem(422, "invalid", f"{n} is negative") for n in asks]


@pytest.fixture
def offload() -> Iterator[Offload]:
    offload = Offload(1, 4)
    yield offload
    offload.close()


async def behind(together: Together[int, int], work: Doubling, first: int, others: list[int]) -> list[object]:
    """Answers of `first`, whose lot is being worked on, and of those that came meanwhile."""
    tasks = [asyncio.create_task(together.run(first))]
    await asyncio.to_thread(work.begun.wait, 10)
    tasks += [asyncio.create_task(together.run(n)) for n in others]
    await asyncio.sleep(0)
    work.go.set()
    return list(await asyncio.gather(*tasks, return_exceptions=True))


def test_what_comes_meanwhile_is_the_next_lot(offload: Offload) -> None:
    work = Doubling()
    together = Together(offload, work, most=3)
    assert asyncio.run(behind(together, work, 1, [2, 3, 4, 5])) == [2, 4, 6, 8, 10]
    assert work.lots == [[1], [2, 3, 4], [5]]


def test_an_error_is_its_own_requests_and_a_bug_is_its_lots(offload: Offload) -> None:
    work = Doubling()
    together = Together(offload, work, most=2)
    one, refused, three, broken = asyncio.run(behind(together, work, 1, [-2, 3, 13]))
    assert (one, three) == (2, 6)
    assert isinstance(refused, Problem)
    assert isinstance(broken, ZeroDivisionError)
    assert asyncio.run(together.run(4)) == 8, "it goes on, on another loop too"


def test_beyond_the_queue_it_is_busy(offload: Offload) -> None:
    work = Doubling()
    together = Together(offload, work, most=2)
    answers = asyncio.run(behind(together, work, 1, [2, 3, 4, 5, 6]))
    assert answers[:-1] == [2, 4, 6, 8, 10]
    assert isinstance(answers[-1], Problem)
    assert answers[-1].status == 503
    assert offload.refused == 1


def test_who_went_away_is_left_out(offload: Offload) -> None:
    work = Doubling()
    together = Together(offload, work, most=2)

    async def scene() -> list[object]:
        first = asyncio.create_task(together.run(1))
        await asyncio.to_thread(work.begun.wait, 10)
        gone, stays = asyncio.create_task(together.run(2)), asyncio.create_task(together.run(3))
        await asyncio.sleep(0)
        gone.cancel()
        work.go.set()
        return list(await asyncio.gather(first, gone, stays, return_exceptions=True))

    first, gone, stays = asyncio.run(scene())
    assert (first, stays) == (2, 6)
    assert isinstance(gone, asyncio.CancelledError)
    assert work.lots == [[1], [3]]
