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
from embedding_store.shared_board import Board
from embedding_store.shared_mirror import Publisher
from serving.preload import settle
from serving.service import Live, Service, version_of
from serving.warm_start import Kept, Saver, restore

log = logging.getLogger(__name__)

_WAIT_S = 0.25  # how often an idle feed confirms that the mirror is caught up
_MODEL_CHECK_S = 2.0  # how often another published model is looked for
_DECAY_SHARE = 0.1  # of the refreshing thread's time, for rows that change by the clock alone
_FIRST_DELAY_S, _LAST_DELAY_S = 0.05, 1.0  # of retries: a recovered store is noticed within a second


class UnreadableModel(StoreError):
    """The published document isn't one this version knows: retried, since the next one may be."""


class Refresher(threading.Thread):
    """Connect, load, then follow the feed until stopped. A store that is away is waited for, with back-off and jitter.

    1. read the published model; where it is new, build a mirror for it and load it: from its file, if there is one that
       may be served and nothing is served yet, else from the store;
    2. replace `service.live`, as a whole;
    3. wait for the feed, refresh, publish to other processes if there are any, confirm.

    It ends only when stopped, or by a programming error: then `service.crash` says so and liveness fails, so that
    whatever supervises the process restarts it. `service.fatal` is set where retrying can't help.
    """

    def __init__(self, service: Service, connect: Callable[[], EmbeddingStore], board: Board | None = None) -> None:
        """board: other processes answer, of what is published there."""
        super().__init__(name="refresher", daemon=True)
        self._service, self._connect, self._board = service, connect, board
        self._kept: Kept | None = None
        self._publisher: Publisher | None = None
        settings = service.settings
        self._saver = Saver(settings, service.freshness, self._to_be_saved) if settings.mirror_folder else None
        self._store: EmbeddingStore | None = None
        self._stopped = threading.Event()
        self._delay_s = _FIRST_DELAY_S
        self._told = False  # that there is no model yet
        self._model_checked_s = 0.0
        self._refused: bytes | None = None  # a model that was told of

    def run(self) -> None:
        """The thread's body."""
        if self._saver is not None:
            self._saver.start()
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
        """Save the mirror, end the thread and close its store."""
        if self._saver is not None and self.is_alive():
            self._saver.finish()
        self._stopped.set()
        if self.is_alive():
            self.join(timeout_s)

    def _attempt(self) -> None:
        try:
            if self._store is None:
                self._store = self._connect()
            kept = self._current(self._store)
            if kept is None:
                self._service.freshness.answered()
                if not self._told:
                    log.warning("no model is published yet: start a trainer")
                self._told = True
                self._pause()
                return
            self._follow(kept.mirror)
            self._delay_s = _FIRST_DELAY_S
        except StoreMisconfigured:
            if self._kept is None:
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

    def _current(self, store: EmbeddingStore) -> Kept | None:
        """What is followed, after a look at what is published; None where nothing is."""
        kept = self._kept
        now = time.monotonic()
        if kept is not None and now - self._model_checked_s < _MODEL_CHECK_S:
            return kept
        document = store.published_model()
        self._model_checked_s = now
        if document is None or (kept is not None and kept.document == document):
            self._told_refused(None)
            return kept
        try:
            model = self._servable(document)
        except UnreadableModel as refused:
            if kept is None:
                raise
            if self._refused != document:
                log.error("%s; the model before it is served on", refused)  # noqa: TRY400 - no defect of ours
            self._told_refused(document)
            return kept
        self._told_refused(None)
        kept = Kept(store, document, ItemMirror(store, model, _DECAY_SHARE))
        as_of_s = self._loaded(kept)
        self._hand_over(kept)
        self._kept = kept
        self._service.freshness.confirm(as_of_s)
        return kept

    def _servable(self, document: bytes) -> ModelSettings:
        """The model of a published document. Raises UnreadableModel."""
        try:
            model = ModelSettings.from_document(document)
        except (ValidationError, msgspec.DecodeError) as error:
            raise UnreadableModel(
                "the published model can't be read: it is of another version, upgrade this service or the trainer"
            ) from error
        return model

    def _told_refused(self, document: bytes | None) -> None:
        """What is published is refused, or nothing is."""
        self._refused = document
        self._service.freshness.model_refused = document is not None

    def _to_be_saved(self) -> Kept | None:
        """The file has items' rows alone: what features add to them would be missing at the start."""
        kept = self._kept
        return None if kept is None or kept.mirror.features is not None else kept

    def _loaded(self, kept: Kept) -> float:
        """Fill the mirror: monotonic time of which it holds all that was in the feed."""
        started_s = time.monotonic()
        restored_s = (
            restore(self._saver.path, kept) if self._saver is not None and kept.mirror.features is None else None
        )
        serves = self._service.live is not None or (self._board is not None and self._board.newest() > 0)
        if restored_s is not None and not serves:
            return restored_s
        kept.mirror.refresh()  # what is served already must not be followed by anything older
        return started_s

    def _hand_over(self, kept: Kept) -> None:
        """From now on it is what answers are made of."""
        store, document, mirror = kept
        if self._board is not None:
            self._publisher = Publisher(self._board, mirror, document)
            self._publisher.publish()
        else:
            live = Live.of(store, document, mirror.model, mirror, self._service.scanner)
            live.warm_up()
            if self._service.live is None:
                settle()
            self._service.live = live
        version = version_of(document)
        log.info("serving model %s: %d items at step %d", version, mirror.size, mirror.clock)

    def _follow(self, mirror: ItemMirror) -> None:
        """One wait for the feed; refresh if there is something."""
        freshness = self._service.freshness
        if not mirror.wait(_WAIT_S):
            if self._publisher is not None:
                self._publisher.tidy()
            freshness.confirm(time.monotonic())
            return
        started = time.monotonic()
        rows = mirror.refresh()
        if self._publisher is not None:
            self._publisher.publish()
        freshness.refreshed(rows, mirror.produced_ms)
        freshness.confirm(started)
