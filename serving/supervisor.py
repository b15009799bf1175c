"""Several processes behind one port.

    parent ──forks──┬─ writer    follows the store, keeps the mirror, saves it
                    ├─ worker 0  answers, from the mirror in shared memory
                    └─ worker 1  …

The parent does nothing but start them, and again whoever ends: it holds the listening sockets, one for each worker, so
that connections to a worker that was killed wait for the next one. Workers are forks of a process that has loaded all
code before; there is nothing to clean up after any of them, see `embedding_store.shared_memory`.

SIGTERM to the parent: 1. every worker's readiness answers 503, and all go on answering; 2. after `drain_s` each closes
its socket and finishes what is in flight; 3. the writer saves the mirror and ends; 4. the parent exits with 0. SIGINT
skips the wait. A parent that is killed takes nothing with it: the others notice, and end as by SIGTERM.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from embedding_store.contract import EmbeddingStore
from serving.crew import CrewMemory
from serving.errors import StartupError
from serving.events import EventSink
from serving.preload import preload
from serving.server import HURRY, listen_all
from serving.settings import ServingSettings
from serving.worker import work
from serving.writer import HOPELESS, write

log = logging.getLogger(__name__)

_SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGCHLD}
_SHORT_S = 5.0  # a life below it is short
_MOST_SHORT = 5  # of such in a row: it will not live
_FIRST_DELAY_S = 0.1  # after a short life; doubled each time
_WRITER_S = 20.0  # for its last save
_SLACK_S = 5.0


@dataclass(eq=False)
class _Place:
    """Of a process, and of whoever comes after it."""

    name: str
    body: Callable[[], int]  # what the process does: its exit code
    pid: int = 0
    began_s: float = 0.0
    short: int = 0  # lives in a row
    again_s: float = 0.0  # monotonic time from when on the next may be started


class Supervisor:
    """The parent. `run` returns after an orderly end, and raises StartupError where nothing is to be hoped for."""

    def __init__(
        self,
        settings: ServingSettings,
        connect: Callable[[], EmbeddingStore],
        events: Callable[[], EventSink] | None,
    ) -> None:
        """connect: to the store, in each process. Raises StartupError."""
        self._settings = settings
        self._listeners = listen_all(settings.host, settings.port, settings.workers)
        self._memory = CrewMemory(settings.workers)
        workers = range(settings.workers)
        self._workers = [_Place(f"worker {i}", partial(self._work, i, connect, events)) for i in workers]
        self._writer = _Place("writer", partial(self._write, connect))
        self._ending = False

    def _work(self, i: int, connect: Callable[[], EmbeddingStore], events: Callable[[], EventSink] | None) -> int:
        listener = self._listeners.pop(i)
        self._leave_listeners()
        return work(i, listener, self._memory, self._settings, connect, events)

    def _write(self, connect: Callable[[], EmbeddingStore]) -> int:
        self._leave_listeners()
        return write(self._memory, self._settings, connect)

    def _leave_listeners(self) -> None:
        """To those who have them as well: a socket is closed once everybody has closed it."""
        for listener in self._listeners:
            listener.close()

    def run(self) -> None:
        """Until a signal."""
        log.info("serving on http://%s:%d", self._settings.host, self._listeners[0].getsockname()[1])
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            self._start(self._writer)  # it loads the mirror, while this loads what answers
            preload()
            for worker in self._workers:
                self._start(worker)
            while not self._ending:
                self._wait(1.0)
                self._replace_the_dead()
            self._end()
        finally:
            for place in (*self._workers, self._writer):
                self._kill(place)
            while signal.sigtimedwait(_SIGNALS, 0) is not None:  # one more of what was acted on
                pass
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        if sentence := self._memory.said():
            raise StartupError(sentence)

    def _start(self, place: _Place) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        place.began_s = time.monotonic()
        place.pid = os.fork()
        if place.pid == 0:
            _live(place.body)
        if place in self._workers:
            self._memory.board.name(self._workers.index(place), place.pid)
        self._memory.crew.count(workers=sum(worker.pid != 0 for worker in self._workers))

    def _wait(self, timeout_s: float) -> None:
        """For a signal; acts on those of whoever wants an end."""
        received = signal.sigtimedwait(_SIGNALS, timeout_s)
        if received is None or received.si_signo == signal.SIGCHLD:
            return
        self._tell_to_end(HURRY if received.si_signo == signal.SIGINT else signal.SIGTERM)

    def _tell_to_end(self, number: int) -> None:
        if not self._ending:
            self._ending = True
            self._leave_listeners()
        for worker in self._workers:
            _tell(worker, number)

    def _replace_the_dead(self) -> None:
        now_s = time.monotonic()
        for place in (self._writer, *self._workers):
            if place.pid and (code := _ended(place)) is not None:
                self._bury(place, code, now_s)
            if not place.pid and now_s >= place.again_s and not self._ending:
                self._memory.crew.restarted(writer=place is self._writer)
                self._start(place)

    def _bury(self, place: _Place, code: int, now_s: float) -> None:
        pid = self._vacate(place)
        if code == HOPELESS:  # it said why
            self._tell_to_end(HURRY)
            return
        log.error("%s (process %d) ended with %d: it is started again", place.name, pid, code)
        place.short = place.short + 1 if now_s - place.began_s < _SHORT_S else 0
        if place.short >= _MOST_SHORT:
            self._memory.say(f"{place.name} ended {place.short} times in a row within {_SHORT_S:.0f} s: see the log")
            self._tell_to_end(HURRY)
        place.again_s = now_s + (_FIRST_DELAY_S * 2**place.short if place.short > 1 else 0.0)

    def _vacate(self, place: _Place) -> int:
        """Nobody is there: what a worker held of the mirror is let go, or the writer would wait for it."""
        pid, place.pid = place.pid, 0
        if place in self._workers:
            self._memory.board.settle(self._workers.index(place))
        return pid

    def _runs(self, place: _Place) -> bool:
        if place.pid and (code := _ended(place)) is not None:
            pid = self._vacate(place)
            if code:
                log.error("%s (process %d) ended with %d", place.name, pid, code)
        return place.pid != 0

    def _kill(self, place: _Place) -> None:
        if self._runs(place):
            log.error("%s (process %d) does not end: it is killed", place.name, place.pid)
            _tell(place, signal.SIGKILL)
            os.waitpid(place.pid, 0)
            self._vacate(place)

    def _end(self) -> None:
        deadline_s = time.monotonic() + self._settings.drain_s + self._settings.shutdown_s + _SLACK_S
        while any(self._runs(worker) for worker in self._workers) and time.monotonic() < deadline_s:
            self._wait(0.5)
        _tell(self._writer, signal.SIGTERM)
        deadline_s = time.monotonic() + _WRITER_S
        while self._runs(self._writer) and time.monotonic() < deadline_s:
            self._wait(0.5)


def _live(body: Callable[[], int]) -> None:
    """A child's whole life; never returns."""
    code = 1
    try:
        for number in _SIGNALS - {signal.SIGCHLD}:
            signal.signal(number, signal.SIG_IGN if number == signal.SIGINT else signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        code = body()
    except BaseException as error:
        log.critical("a process of the service failed", exc_info=error)
    finally:
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _tell(place: _Place, number: int) -> None:
    if place.pid:
        with contextlib.suppress(ProcessLookupError):
            os.kill(place.pid, number)


def _ended(place: _Place) -> int | None:
    """Exit code, negative for a signal; None while it runs. Its pid is another's from then on."""
    pid, status = os.waitpid(place.pid, os.WNOHANG)
    return None if pid == 0 else os.waitstatus_to_exitcode(status)
