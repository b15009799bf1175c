"""The client as it is installed: what it needs, what it brings, and that it works without NumPy."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from email.parser import Parser
from pathlib import Path

import pytest

from tests.serving.conftest import MODEL, MakeWorld, World

ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {refused}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Refuse())
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name: None if name == "numpy" else found(name)
from array import array
from towline_client import Client
with Client(sys.argv[1]) as client:
    vector = client.embedding("item", "i1").vector
    assert isinstance(vector, array) and len(vector) == {dim}, vector
    assert client.embeddings("item", ["i1"]).vectors[0] == vector
    assert client.recommend("u1").items
print(sys.modules["towline_client"].__file__)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, check=True, capture_output=True, cwd=ROOT / "towline_client")
    (path,) = folder.glob("*.whl")
    return path


def test_the_wheel_needs_httpx_alone_and_has_every_module(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (metadata,) = (name for name in names if name.endswith("METADATA"))
        needs = Parser().parsestr(archive.read(metadata).decode()).get_all("Requires-Dist")
    assert needs == ["httpx>=0.27"]
    sources = {f"towline_client/{path.name}" for path in (ROOT / "towline_client").glob("*.py")}
    assert {name for name in names if ".dist-info/" not in name} == sources | {"towline_client/py.typed"}


def test_the_wheel_works_without_numpy_and_all_that_the_service_needs(
    wheel: Path, tmp_path: Path, make_world: MakeWorld, url_of: Callable[[World], str]
) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    refused = {"numpy", "numba", "redis", "msgspec", "pydantic", "tensorflow", "native", "serving", "embedding_store"}
    program = PROGRAM.format(refused=refused, dim=MODEL.dim)
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [sys.executable, "-c", program, url_of(make_world())]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment | {"PYTHONPATH": str(tmp_path)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).is_relative_to(tmp_path)
