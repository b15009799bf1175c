"""Every error of the service.

ServingError
├── StartupError   the process can't serve; the message is one sentence with the remedy
├── EventRefused   an event can't be used: none of its request was produced
├── StreamAway     events were not acknowledged: some of them may have arrived
└── Problem        a request is answered with an RFC 9457 problem document (`serving.problems`)
"""

from __future__ import annotations


class ServingError(Exception):
    """Root of the room's errors."""


class StartupError(ServingError):
    """The service can't start; the message names the cause and the remedy."""


class EventRefused(ServingError):
    """Event number `index` can't be used; `field` is the member at fault, the message names value and remedy."""

    def __init__(self, index: int, field: str, reason: str) -> None:
        super().__init__(reason)
        self.index, self.field = index, field


class StreamAway(ServingError):
    """The broker did not acknowledge. Whether events arrived is not known."""
