"""What `towline` says when it can't: one sentence with the remedy, and an exit code.

InfraError
├── ConfigError          a file, a section, a key or a value that is not usable
└── LocalStackError
    ├── PortInUse        a port that the configuration fixes belongs to somebody else
    ├── ServerMissing    no way to get that server on this machine
    ├── StartFailed      it was started and died, or did not answer in time
    ├── NotRunning       a command needs a stack that is not up
    └── Interrupted      it was told to stop while something was starting
"""

from __future__ import annotations


class InfraError(Exception):
    """Root of this room's errors; the command line prints the message and leaves with `exit_code`."""

    exit_code = 1


class ConfigError(InfraError):
    """The configuration is not usable; the message names the place, the fault and the remedy."""

    exit_code = 2


class LocalStackError(InfraError):
    """The local stack can't do what was asked."""


class PortInUse(LocalStackError):
    """A port fixed in the configuration is taken."""

    def __init__(self, key: str, port: int) -> None:
        self.key = key
        self.port = port
        super().__init__(
            f"port {port} ({key}) is in use by another program: stop that program or set another port"
            + (", or 0 to let Towline choose a free one" if key.startswith("[local]") else "")
        )


class ServerMissing(LocalStackError):
    """The machine has no such server and none could be fetched; the message lists what was tried."""


class StartFailed(LocalStackError):
    """A process died while starting or did not answer in time; the message ends with its last log lines."""


class NotRunning(LocalStackError):
    """The configuration points to no server and no local stack is up."""


class Interrupted(LocalStackError):
    """Starting was given up because it was asked to; what had been started is still up."""
