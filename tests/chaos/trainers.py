"""Trainer processes that are killed, stopped, and started again as a supervisor would."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path

from infra.config import HANDED, TowlineConfig, hand_over

_COMMANDS = {"towers": ("infra", "trainer"), "linear": ("tests.chaos.linear",)}
_GOES_BY_ITSELF_S = 15.0


@dataclass
class Trainer:
    """One member of the group under a fixed name, through as many processes as it takes."""

    config: TowlineConfig
    model: str
    log: Path
    process: subprocess.Popen[bytes] | None = None
    exits: list[int] = field(default_factory=list)
    """Codes of processes that ended though nobody had ended them."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self) -> None:
        """A new process; its words are added to the log."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith("TOWLINE_")}
        environment |= {HANDED: hand_over(self.config), "TF_CPP_MIN_LOG_LEVEL": "2"}
        command = [sys.executable, "-m", *_COMMANDS[self.model]]
        with self._lock, self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
            )

    def kill(self) -> None:
        """SIGKILL, also of a stopped process."""
        with self._lock:
            if self.process is not None and self._ended_by_itself() is None:
                self.process.kill()
                self.process.wait()
            self.process = None

    def pause(self) -> None:
        """SIGSTOP."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self._signal(signal.SIGCONT)

    def leave(self) -> None:
        """SIGTERM, and wait: it applies what is pending and leaves the group."""
        with self._lock:
            if self.process is not None and self._ended_by_itself() is None:
                self.process.terminate()
                try:
                    self.process.wait(_GOES_BY_ITSELF_S)
                except subprocess.TimeoutExpired:
                    self.process.kill()
                    self.process.wait()
            self.process = None

    def revive(self) -> bool:
        """Start it again if it has ended by itself; whether it had."""
        with self._lock:
            gone = self.process is not None and self._ended_by_itself() is not None
        if gone:
            self.start()
        return gone

    def _signal(self, number: int) -> None:
        with self._lock:
            if self.process is not None and self._ended_by_itself() is None:
                self.process.send_signal(number)

    def _ended_by_itself(self) -> int | None:
        assert self.process is not None
        code = self.process.poll()
        if code is not None:
            self.exits.append(code)
        return code
