"""The thread of a worker that turns to whatever mirror the writer publishes."""

from __future__ import annotations

import logging
import os
import signal
import threading

from pydantic import ValidationError

from embedding_store.contract import EmbeddingStore
from embedding_store.errors import StoreError
from embedding_store.followed_features import FollowedFeatures
from embedding_store.model import ModelSettings
from embedding_store.shared_board import Board
from embedding_store.shared_mirror import SharedMirror, Sides
from serving.service import Live, Service

log = logging.getLogger(__name__)

_EVERY_S = 0.05


class Follower(threading.Thread):
    """Sets `service.live` whenever there is a newer book. Rows of a book come by themselves.

    Where it fails, or the parent is gone, the worker is told to end as by SIGTERM: a parent starts another.
    """

    def __init__(self, service: Service, board: Board, worker: int, store: EmbeddingStore) -> None:
        """store: for what is not in the mirror; need not be connected yet."""
        super().__init__(name="follower", daemon=True)
        self._service, self._board, self._worker, self._store = service, board, worker, store
        self._parent = os.getppid()
        self._book = 0
        self._features: FollowedFeatures | None = None
        self._stopped = threading.Event()

    def run(self) -> None:
        """The thread's body."""
        try:
            while not self._stopped.wait(_EVERY_S if self._book else _EVERY_S / 10):
                self._look()
                if self._features is not None:
                    self._features.check()
                if os.getppid() != self._parent:
                    log.error("the process that started this worker is gone: it ends")
                    os.kill(os.getpid(), signal.SIGTERM)
                    return
        except BaseException as error:
            log.critical("the following thread died", exc_info=error)
            self._service.crash = f"the following thread died: {error!r}"
            os.kill(os.getpid(), signal.SIGTERM)

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        self.join()
        if self._features is not None:
            self._features.stop()

    def _look(self) -> None:
        book = self._board.newest()
        if book == self._book:
            return
        try:
            self._turn_to(book)
        except StoreError as error:  # the store went away meanwhile, or the book did: there is another then
            log.warning("worker %d can't turn to model in book %d yet: %s", self._worker, book, ascii(str(error)))

    def _turn_to(self, book: int) -> None:
        document = self._board.document(book)
        try:
            model = ModelSettings.from_document(document)
        except ValidationError as error:
            raise AssertionError("the writer could read this model") from error
        features = FollowedFeatures(self._store, model) if model.features else None
        if features is not None:
            features.load()
        mirror = SharedMirror(Sides(self._board, book, model, self._worker), features)
        live = Live.of(self._store, document, model, mirror, self._service.scanner)
        live.warm_up(users=not self._service.store_down)
        if features is not None:
            features.start()
        self._service.live = live
        before, self._features = self._features, features
        if before is not None:
            before.stop()
        self._book = book
        log.info("worker %d serves model %s: %d items", self._worker, live.version, mirror.size)
