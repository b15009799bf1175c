"""Every error of the service.

ServingError
├── StartupError   the process can't serve; the message is one sentence with the remedy
└── Problem        a request is answered with an RFC 9457 problem document (`serving.problems`)
"""

from __future__ import annotations


class ServingError(Exception):
    """Root of the room's errors."""


class StartupError(ServingError):
    """The service can't start; the message names the cause and the remedy."""
