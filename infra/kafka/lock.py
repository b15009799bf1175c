"""Writes infra/local/kafka-jars.lock from pom.xml: `python -m infra.kafka.lock`. Needs Maven."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

from infra.local.jars import LOCK_FILE, Jar, sha256_of
from infra.local.java import find_java
from infra.local.maven import POM, find_maven, run_maven

_LINE = re.compile(r"^\s+([\w.-]+):([\w.-]+):jar:([\w.-]+):(compile|runtime)")


def main() -> None:
    """Resolves the pom afresh and writes one line a jar: coordinates, SHA-256, size."""
    maven = find_maven(os.environ)
    if maven is None:
        raise SystemExit("mvn is not on PATH: install Maven to lock the jars of pom.xml")
    java = find_java(os.environ)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        listing = folder / "list.txt"
        run_maven(
            maven, java, ["dependency:copy-dependencies", f"-DoutputDirectory={folder}", "-DincludeScope=runtime"]
        )
        run_maven(maven, java, ["dependency:list", f"-DoutputFile={listing}", "-DincludeScope=runtime"])
        jars = []
        for line in listing.read_text(encoding="utf-8").splitlines():
            if found := _LINE.match(line):
                jar = Jar(group=found[1], artifact=found[2], version=found[3], sha256="", size=0)
                path = folder / jar.file_name
                jars.append(jar._replace(sha256=sha256_of(path), size=path.stat().st_size))
    head = f"# Made by `python -m infra.kafka.lock` from {POM.name}: group:artifact:version sha256 bytes\n"
    LOCK_FILE.write_text(head + "".join(f"{jar.coordinates} {jar.sha256} {jar.size}\n" for jar in sorted(jars)))


if __name__ == "__main__":
    main()
