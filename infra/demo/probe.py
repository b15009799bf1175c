"""Freshness as a client sees it: from handing an event to the producer until HTTP answers with it."""

from __future__ import annotations

import http.client
import json
import threading
import time

import numpy as np

from infra.demo.replay import Replay

_BETWEEN_ASKS_S = 0.002


class FreshnessProbe(threading.Thread):
    """Takes the newest sent event, asks for its user's embedding until it counts that event, takes the next.

    One measurement at a time, so a slow answer also costs samples; what is reported are percentiles of all of them.
    """

    def __init__(self, host: str, port: int, replay: Replay) -> None:
        super().__init__(name="probe", daemon=True)
        self._host, self._port, self._replay = host, port, replay
        self._ended = threading.Event()
        self.waits_s: list[float] = []

    def stop(self) -> None:
        """Measure no more."""
        self._ended.set()

    def percentile_ms(self, q: float) -> float | None:
        """Of all waits so far; None before the first."""
        waits = self.waits_s[:]
        return round(float(np.percentile(waits, q)) * 1e3, 2) if waits else None

    def run(self) -> None:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=10)
        last = None
        while not self._ended.wait(_BETWEEN_ASKS_S):
            sent = self._replay.latest
            if sent is None or sent is last:
                continue
            last = sent
            try:
                while not self._ended.is_set() and self._events_of(connection, sent.user_id) < sent.nth:
                    self._ended.wait(_BETWEEN_ASKS_S)
            except (OSError, http.client.HTTPException):
                connection.close()  # the service is not there (yet): whoever supervises it says so
                continue
            if not self._ended.is_set():
                self.waits_s.append(time.monotonic() - sent.at_s)

    @staticmethod
    def _events_of(connection: http.client.HTTPConnection, user_id: int) -> int:
        """Events that the served embedding of the user reflects; 0 while the user is unknown."""
        connection.request("GET", f"/v1/embeddings/user/{user_id}")
        response = connection.getresponse()
        body = response.read()
        return int(json.loads(body)["events"]) if response.status == http.HTTPStatus.OK else 0
