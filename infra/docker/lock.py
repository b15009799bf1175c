"""Writes one lock file an image from requirements.lock: `python -m infra.docker.lock`. Run after `make lock`.

requirements.lock holds everything, TensorFlow and the test tools included; an image installs only its own extra,
in the very same versions with the very same hashes.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
ARGUMENTS = {
    "build": ["--group", "build"],
    "serving": ["pyproject.toml", "--extra", "serving", "--extra", "events"],
    "trainer": ["pyproject.toml", "--extra", "trainer", "--extra", "librdkafka"],
}


def main() -> None:
    """Resolves each image's needs under the constraint of the one lock file."""
    for image, arguments in ARGUMENTS.items():
        uv = [str(Path(sys.executable).with_name("uv")), "pip", "compile", "--quiet", "--universal"]
        uv += ["--python-version", "3.11", "--generate-hashes", "--no-header", "--no-emit-index-url", "--no-annotate"]
        uv += ["--constraint", "requirements.lock", *arguments, "-o", f"infra/docker/{image}.lock"]
        subprocess.run(uv, check=True, cwd=ROOT)  # noqa: S603


if __name__ == "__main__":
    main()
