"""Trainer and serving as processes of the local stack."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import sys
import time
from pathlib import Path

from infra.config import HANDED, TowlineConfig, hand_over
from infra.errors import PortInUse
from infra.local import process
from infra.local.ports import accepts, is_free
from serving.settings import ServingSettings


class Service:
    """`towline train` or `towline serve` with this very configuration, handed over in the environment.

    There and not in a file: the environment of a process is readable by its own user only, and nothing stays behind.
    """

    note = ""

    def __init__(self, kind: str, name: str, config: TowlineConfig, port: int, host: str = "") -> None:
        self.kind = kind
        self.name = name
        self.port = port
        self._host = host
        self._config = config

    @property
    def address(self) -> str:
        """URL, empty for a service that nobody connects to."""
        return f"http://{self._host}:{self.port}" if self.port else ""

    def start(self) -> process.ProcessRecord:
        """Starts the process in its own session."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith("TOWLINE_")}
        environment[HANDED] = hand_over(self._config)
        environment.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # TensorFlow tells of every library it did not find
        command = [sys.executable, "-m", "infra", "serve" if self.kind == "serving" else "train"]
        return process.start(self.name, command, self._log, environment)

    def answers(self) -> bool:
        """The port accepts connections. A service without one (a trainer) is not asked: it waits and retries itself."""
        return not self.port or accepts(self.port, self._host)

    @property
    def _log(self) -> Path:
        return self._config.local.state_dir / "logs" / f"{self.name.replace(' ', '-')}.log"


def trainer(config: TowlineConfig, number: int) -> Service:
    """Trainer `number`, 0 the first; its static member name and its port for metrics follow from it.

    Named also where the configuration names none: one that is started again has its partitions back at once. The name
    is that of machine and state directory, so that other stacks and other trainers may share the group.
    """
    own = config.trainer
    base = own.instance or _stack_name(config)
    port = own.metrics_port and own.metrics_port + number  # 0 stays "none"
    instance = own.instance if own.instance and not number else f"{base}-{number}"
    state = config.local.state_dir
    own = own.model_copy(
        update={
            "instance": instance,
            "metrics_port": port,
            "alarm_file": own.alarm_file or str(alarm_file(state, number)),
            "guard_snapshots": own.guard_snapshots or str(state / "snapshots"),
        }
    )
    return Service("trainer", f"trainer {number}", config.model_copy(update={"trainer": own}), port=0)


def alarm_file(state_dir: Path, number: int) -> Path:
    """Where trainer `number` of a stack notes what it has quarantined."""
    return state_dir / f"alarm-trainer-{number}.json"


def alarm(name: str, path: Path) -> str:
    """What a trainer's alarm says, empty while there is none."""
    try:
        noted = json.loads(path.read_bytes())
        when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(noted["since_ms"] / 1000))
        return f"{name} {'is paused, ' if noted['paused'] else ''}{when}: {noted['text']}"
    except FileNotFoundError:
        return ""
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{name} has an alarm, and {path} can't be read: {error}"


def _stack_name(config: TowlineConfig) -> str:
    place = f"{socket.gethostname()}:{config.local.state_dir.resolve()}"
    return f"local-{hashlib.sha256(place.encode()).hexdigest()[:10]}"


def serving(config: TowlineConfig) -> Service:
    """The HTTP service. Raises PortInUse."""
    settings = config.serving
    require_port(settings)
    own: dict[str, object] = {}
    if config.trainer.metrics_port and not settings.trainer_metrics:
        first, trainer_host = config.trainer.metrics_port, config.trainer.metrics_host
        ports = range(first, first + config.local.trainers)
        own["trainer_metrics"] = tuple(f"http://{trainer_host}:{port}/metrics" for port in ports)
    if not settings.mirror_folder:
        own["mirror_folder"] = str(config.local.state_dir / "serving")
    config = config.model_copy(update={"serving": settings.model_copy(update=own)})
    host = "127.0.0.1" if settings.host in ("0.0.0.0", "::") else settings.host  # noqa: S104  compared, not bound
    return Service("serving", "serving", config, settings.port, host)


def require_port(settings: ServingSettings) -> None:
    """Raises PortInUse where serving could not listen."""
    if settings.port and not is_free(settings.port):
        raise PortInUse("[serving] port", settings.port)
