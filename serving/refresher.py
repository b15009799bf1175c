"""The thread that finds the published model and keeps its mirror fresh."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable

import msgspec
from pydantic import ValidationError

from embedding_store.contract import EmbeddingStore
from embedding_store.errors import StoreError, StoreMisconfigured
from embedding_store.mirror import ItemMirror
from embedding_store.model import ModelSettings
from serving.service import Live, Service

log = logging.getLogger(__name__)

_WAIT_S = 0.25  # how often an idle feed confirms that the mirror is caught up
_MODEL_CHECK_S = 2.0  # how often another published model is looked for
_DECAY_SHARE = 0.1  # of the refreshing thread's time, for rows that change by the clock alone
_FIRST_DELAY_S, _LAST_DELAY_S = 0.05, 1.0  # of retries: a recovered store is noticed within a second


class UnreadableModel(StoreError):
    """The published document isn't one this version knows: retried, since the next one may be."""


class Refresher(threading.Thread):
    """Connect, load, then follow the feed until stopped. A store that is away is waited for, with back-off and jitter.

    1. read the published model; where it is new, build a mirror for it and load it;
    2. replace `service.live`, as a whole;
    3. wait for the feed, refresh, confirm.

    It ends only when stopped, or by a programming error: then `service.crash` says so and liveness fails, so that
    whatever supervises the process restarts it. `service.fatal` is set where retrying can't help.
    """

    def __init__(self, service: Service, connect: Callable[[], EmbeddingStore]) -> None:
        super().__init__(name="refresher", daemon=True)
        self._service, self._connect = service, connect
        self._store: EmbeddingStore | None = None
        self._stopped = threading.Event()
        self._delay_s = _FIRST_DELAY_S
        self._told = False  # that there is no model yet
        self._model_checked_s = 0.0

    def run(self) -> None:
        """The thread's body."""
        try:
            while not self._stopped.is_set():
                self._attempt()
        except StoreMisconfigured as error:
            self._service.fatal = str(error)
        except BaseException as error:
            # told to the log first: liveness may end the process
            log.critical("the refreshing thread died", exc_info=error)
            self._service.crash = f"the refreshing thread died: {error!r}"
        finally:
            if self._store is not None:
                self._store.close()

    def stop(self, timeout_s: float = 2.0) -> None:
        """End the thread and close its store."""
        self._stopped.set()
        if self.is_alive():
            self.join(timeout_s)

    def _attempt(self) -> None:
        try:
            if self._store is None:
                self._store = self._connect()
            live = self._current(self._store)
            if live is None:
                self._service.freshness.answered()
                if not self._told:
                    log.warning("no model is published yet: start a trainer")
                self._told = True
                self._pause()
                return
            self._follow(live)
            self._delay_s = _FIRST_DELAY_S
        except StoreMisconfigured:
            if self._service.live is None:
                raise
            self._retry("the store's configuration became unusable")
        except StoreError as error:
            self._retry(str(error) or type(error).__name__)

    def _retry(self, why: str) -> None:
        freshness = self._service.freshness
        if freshness.failure != why:
            log.warning("not following the store, retrying: %s", ascii(why))
        freshness.failed(why)
        self._pause()

    def _pause(self) -> None:
        self._model_checked_s = 0.0  # what comes back may not be what went away
        self._stopped.wait(self._delay_s * random.uniform(0.5, 1.0))  # noqa: S311 - jitter
        self._delay_s = min(2 * self._delay_s, _LAST_DELAY_S)

    def _current(self, store: EmbeddingStore) -> Live | None:
        """The live model, after a look at what is published; None where nothing is."""
        live = self._service.live
        now = time.monotonic()
        if live is not None and now - self._model_checked_s < _MODEL_CHECK_S:
            return live
        document = store.published_model()
        self._model_checked_s = now
        if document is None or (live is not None and live.document == document):
            return live
        try:
            model = ModelSettings.from_document(document)
        except (ValidationError, msgspec.DecodeError) as error:
            raise UnreadableModel(
                "the published model can't be read: it is of another version, upgrade this service or the trainer"
            ) from error
        mirror = ItemMirror(store, model, _DECAY_SHARE)
        started = time.monotonic()
        mirror.refresh()
        live = Live.of(store, document, model, mirror)
        live.warm_up()
        self._service.live = live
        self._service.freshness.confirm(started)
        log.info("serving model %s: %d items at step %d", live.version, mirror.size, mirror.clock)
        return live

    def _follow(self, live: Live) -> None:
        """One wait for the feed; refresh if there is something."""
        freshness = self._service.freshness
        if not live.mirror.wait(_WAIT_S):
            freshness.confirm(time.monotonic())
            return
        started = time.monotonic()
        rows = live.mirror.refresh()
        freshness.refreshed(rows, live.mirror.produced_ms)
        freshness.confirm(started)
