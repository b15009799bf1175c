"""A Python of the peer's own: its releases of TensorFlow and Keras are not ours."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

REQUIREMENTS = (
    "tensorflow==2.16.2",
    "tf_keras==2.16.0",
    "tensorflow-recommenders-addons==0.8.1",
    "setuptools<81",  # tf_keras 2.16 asks for pkg_resources
)
_NEWEST_PYTHON = (3, 12)
"""That TensorFlow 2.16 has a wheel for."""


def peer_python() -> Path:
    """The interpreter, made once per set of requirements. Raises RuntimeError with pip's last lines."""
    if sys.version_info[:2] > _NEWEST_PYTHON:
        raise RuntimeError(f"the peer needs Python 3.12 or older, this is {sys.version.split()[0]}")
    told = "\n".join((*REQUIREMENTS, sys.version)).encode()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "towline"
    folder = cache / f"peer-{hashlib.sha256(told).hexdigest()[:16]}"
    python = folder / "bin" / "python"
    if python.exists():
        return python
    print("installing the peer in an environment of its own (once, some minutes)", file=sys.stderr, flush=True)
    cache.mkdir(parents=True, exist_ok=True)
    # scripts of an environment name its folder, so it is built in place, and marked by the interpreter that comes last
    with tempfile.TemporaryDirectory(prefix="peer-", dir=cache) as building:
        venv.create(building, with_pip=True, symlinks=True)
        pip = [str(Path(building) / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        done = subprocess.run([*pip, *REQUIREMENTS], capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"the peer can't be installed:\n{done.stderr[-2000:]}")
        Path(building).rename(folder)
        Path(building).mkdir()  # for its removal
    return python
