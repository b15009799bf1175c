"""Deployment files: no Docker engine here, so syntax, references and promises are checked."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.config import load

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "infra" / "docker"
DOCKERFILES = sorted(DOCKER.glob("Dockerfile.*"))
UNITS = sorted((ROOT / "infra" / "systemd").glob("*.service"))
INSTRUCTIONS = set(re.findall(r"\w+", "FROM RUN COPY ENV WORKDIR USER EXPOSE HEALTHCHECK STOPSIGNAL ENTRYPOINT CMD"))


def instructions(path: Path) -> list[tuple[str, str]]:
    """(instruction, arguments), continuation lines joined."""
    text = re.sub(r"(?m)^\s*#.*\n", "", path.read_text(encoding="utf-8")).replace("\\\n", " ")
    return [(line.split()[0], line.partition(" ")[2].strip()) for line in text.splitlines() if line.strip()]


def locked(path: Path) -> dict[str, str]:
    """Name → everything after it: version, marker and hashes."""
    joined = re.sub(r"(?m)^\s*#.*\n", "", path.read_text(encoding="utf-8")).replace("\\\n", " ")
    return {line.split("==")[0]: " ".join(line.split("==")[1].split()) for line in joined.splitlines() if "==" in line}


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_dockerfiles(path: Path) -> None:
    steps = instructions(path)
    assert steps[0][0] == "FROM"
    assert {name for name, _ in steps} <= INSTRUCTIONS
    for name, arguments in steps:
        if name == "COPY" and not arguments.startswith("--from"):
            *sources, _ = arguments.split()
            assert all((ROOT / source).exists() for source in sources), arguments
        if name == "FROM":
            assert ":" in arguments, "a pinned tag"
        if "pip install" in arguments:
            assert "--require-hashes" in arguments or "--no-deps" in arguments, arguments
    last_user = [arguments for name, arguments in steps if name == "USER"][-1]
    assert last_user not in ("root", "0")


def test_images_install_what_was_tested_and_serving_no_tensorflow() -> None:
    everything = locked(ROOT / "requirements.lock")
    for image in ("build", "serving", "trainer"):
        for name, rest in locked(DOCKER / f"{image}.lock").items():
            version, hashes = rest.split()[0], set(re.findall(r"sha256:\w+", rest))
            assert version == everything[name].split()[0], f"{image}.lock is stale: python -m infra.docker.lock"
            assert hashes == set(re.findall(r"sha256:\w+", everything[name]))
    serving = locked(DOCKER / "serving.lock")
    assert {"fastapi", "redis", "numba"} <= set(serving)
    assert "tensorflow" not in serving
    assert "tensorflow" in locked(DOCKER / "trainer.lock")


def compose() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((ROOT / "infra" / "compose.yaml").read_text(encoding="utf-8"))
    return document


def test_compose_is_whole() -> None:
    document = compose()
    services = document["services"]
    assert set(services) == {"kafka", "redis", "trainer", "serving"}
    for name, service in services.items():
        assert ("image" in service) != ("build" in service)
        if build := service.get("build"):
            assert (ROOT / build["dockerfile"]).is_file()
            assert (ROOT / "infra" / build["context"]).resolve() == ROOT
        assert set(service.get("depends_on", {})) <= set(services)
        for needed in service.get("depends_on", {}):
            assert "healthcheck" in services[needed], f"{name} waits for the health of {needed}"
        for volume in service.get("volumes", []):
            assert volume.split(":")[0] in document["volumes"]
        assert service["restart"] == "unless-stopped"
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))


@pytest.mark.parametrize("name", ["trainer", "serving"])
def test_compose_sets_only_known_keys(name: str) -> None:
    service = compose()["services"][name]
    config = load(
        None, {key: re.sub(r"\$\{.*\}", "a-key", value) for key, value in service["environment"].items()}
    ).config
    assert config.kafka.bootstrap_servers == "kafka:9092"
    assert config.redis.url == "redis://redis:6379/0"


def test_the_redis_image_never_evicts() -> None:
    text = (DOCKER / "redis.conf").read_text(encoding="utf-8")
    assert "maxmemory-policy noeviction" in text
    assert "appendonly yes" in text


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_units(path: Path, tmp_path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert re.findall(r"(?m)^\[(\w+)\]$", text) == ["Unit", "Service", "Install"]
    lines = [line for line in text.splitlines() if line and line[0] not in "#["]
    assert all(re.fullmatch(r"[A-Z]\w+=.*", line) for line in lines)
    for promise in ("DynamicUser=yes", "User=towline", "NoNewPrivileges=yes", "ProtectSystem=strict", "Restart=always"):
        assert promise in lines
    for variable in re.findall(r"(?m)^Environment=(TOWLINE_\w+__\w+)=", text):
        load(None, {variable: "1"})
    if not (analyze := shutil.which("systemd-analyze")):
        return
    # The program is not installed here: another one that exists stands in for it.
    copy = tmp_path / path.name.replace("@", "@0")
    copy.write_text(text.replace("/opt/towline/bin/towline", "/bin/true"))
    answer = subprocess.run([analyze, "verify", "--man=no", str(copy)], capture_output=True, text=True, check=False)
    complaints = [line for line in answer.stderr.splitlines() if copy.name in line]
    assert not complaints, complaints


def test_the_ci_script_parses() -> None:
    subprocess.run(["bash", "-n", str(ROOT / ".ci" / "run")], check=True)
