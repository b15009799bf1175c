"""What the stack needs of a server or service: start, and know when it answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from infra.errors import Interrupted, StartFailed
from infra.local.deadline import Deadline
from infra.local.process import ProcessRecord, is_alive, last_lines, stop


class Server(Protocol):
    """One thing to start. Made ready to start by its constructor's caller: all that can be missing has been found."""

    kind: str
    name: str
    note: str
    port: int

    @property
    def address(self) -> str:
        """What clients connect to."""

    def start(self) -> ProcessRecord:
        """Starts the process and returns at once. Raises StartFailed if there is nothing to wait for."""

    def answers(self) -> bool:
        """Whether it serves its clients now. Pure question; never raises because of a server that is down."""


def await_answer(
    server: Server, record: ProcessRecord, timeout_s: float, stop_timeout_s: float, stopping: Callable[[], bool]
) -> None:
    """Waits until `server` answers. One that dies or is too slow is stopped: StartFailed, with the end of its log.

    Raises Interrupted as soon as `stopping` says so; the server is left as it is then.
    """
    answered = Deadline(timeout_s).wait(lambda: stopping() or not is_alive(record) or server.answers())
    if stopping():
        raise Interrupted(f"told to stop while {server.name} was starting")
    if answered and is_alive(record):  # a dead one's port may be answered by another program
        return
    how = f"did not answer within {timeout_s:g} s" if is_alive(record) else "died while starting"
    stop(record, stop_timeout_s)
    raise StartFailed(
        f"{server.name} {how}; see {record.log}, which ends:\n{last_lines(record.log) or '(nothing)'}\n"
        f"Mend what it complains of and run `towline up` again; if it was only slow, raise [local] start_timeout_s."
    )
