"""Rows of features beside a mirror that is shared: each process that answers has a copy of its own."""

from __future__ import annotations

import logging
import threading

from embedding_store.contract import EmbeddingStore
from embedding_store.errors import StoreError
from embedding_store.feature_mirror import FeatureMirror
from embedding_store.model import ModelSettings
from embedding_store.turn_lock import TurnLock

log = logging.getLogger(__name__)

_WAIT_S = 0.25
_RETRY_S = 0.5


class FollowedFeatures(threading.Thread):
    """A `FeatureMirror` and the thread that refreshes it. Rows of features are few; items' are what is worth sharing.

    What items' features add up to is in the shared rows already: this is for users, requests, filters and `explain`.
    A store that is away is waited for; what is there is answered from meanwhile.
    """

    def __init__(self, store: EmbeddingStore, model: ModelSettings) -> None:
        super().__init__(name="features", daemon=True)
        self.mirror = FeatureMirror(store, model)
        self.lock = TurnLock()
        """Held by whoever reads or refreshes."""
        self._fault: BaseException | None = None
        self._store = store
        self._stopped = threading.Event()

    def load(self) -> None:
        """Take in all there is. Raises StoreError."""
        news = self.mirror.fetch()
        with self.lock:
            self.mirror.take(news)

    def run(self) -> None:
        """The thread's body; `load` went before."""
        away = False
        try:
            while not self._stopped.is_set():
                try:
                    cursors = self.mirror.cursors
                    known = [cursor for cursor in cursors.values() if cursor is not None]
                    if len(known) < len(cursors) or self._store.wait_for_changes(tuple(cursors), known, _WAIT_S):
                        self.load()
                    away = False
                except StoreError as error:
                    if not away:
                        log.warning("features stay as they are: %s", ascii(str(error)))
                    away = True
                    self._stopped.wait(_RETRY_S)
        except BaseException as fault:
            log.critical("the thread of the features died", exc_info=fault)
            self._fault = fault

    def check(self) -> None:
        """Raises what ended the thread, if it was not `stop`."""
        if self._fault is not None:
            raise self._fault

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        if self.is_alive():
            self.join()
