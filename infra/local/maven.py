"""Two ways to fetch locked jars: Maven, which knows the site's mirrors and proxies, and jgo, which needs no Java."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from infra.errors import ServerMissing
from infra.local.jars import Arrived, Fetch, Jar
from infra.local.java import Java

POM = Path(__file__).parent.parent / "kafka" / "pom.xml"
_MAVEN_TIMEOUT_S = 600
_CONNECT_TIMEOUT_MS = 10_000


def find_maven(environ: Mapping[str, str]) -> Path | None:
    """`mvn` on PATH."""
    found = shutil.which("mvn", path=environ.get("PATH", ""))
    return Path(found) if found else None


def run_maven(maven: Path, java: Java, arguments: Sequence[str]) -> None:
    """Runs Maven on our pom with that runtime. Raises ServerMissing with its last error line."""
    command = [str(maven), "-q", "-B", "-f", str(POM), f"-Daether.connector.connectTimeout={_CONNECT_TIMEOUT_MS}"]
    command += [f"-Dmaven.wagon.http.connectionTimeout={_CONNECT_TIMEOUT_MS}", *arguments]
    environment = {**os.environ, "JAVA_HOME": str(java.home)}
    try:
        answer = subprocess.run(  # noqa: S603  mvn found on PATH
            command, capture_output=True, text=True, timeout=_MAVEN_TIMEOUT_S, env=environment, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ServerMissing(f"mvn failed: {error}") from error
    if answer.returncode:
        errors = [line for line in (answer.stdout + answer.stderr).splitlines() if line.startswith("[ERROR]")]
        raise ServerMissing(f"mvn failed: {errors[0].removeprefix('[ERROR] ') if errors else answer.returncode}")


def with_maven(maven: Path, java: Java) -> Fetch:
    """Fetches through `mvn`: settings.xml, mirrors, credentials and the local repository of this machine apply."""

    def fetch(jars: Sequence[Jar], folder: Path, arrived: Arrived) -> None:
        run_maven(
            maven, java, ["dependency:copy-dependencies", f"-DoutputDirectory={folder}", "-DincludeScope=runtime"]
        )
        for jar in jars:
            arrived(jar.size)

    return fetch


def directly(repository: str = "", connections: int = 8) -> Fetch:
    """Fetches with jgo, eight jars at a time, from `repository` or from the public one that jgo knows."""

    def fetch(jars: Sequence[Jar], folder: Path, arrived: Arrived) -> None:
        try:
            from jgo.maven import MavenContext  # noqa: PLC0415  an optional package
        except ImportError:
            raise ServerMissing("jgo is not installed (`pip install 'towline[local]'`)") from None
        remotes = {"configured": repository.rstrip("/")} if repository else None
        context = MavenContext(repo_cache=folder / "repository", local_repos=[], remote_repos=remotes)

        def one(jar: Jar) -> None:
            component = context.project(jar.group, jar.artifact).at_version(jar.version)
            component.artifact().resolve().replace(folder / jar.file_name)
            arrived(jar.size)

        with ThreadPoolExecutor(connections) as pool:
            tasks = {pool.submit(one, jar): jar for jar in jars}
            try:
                for task in as_completed(tasks):
                    # OSError: the network (requests' errors are OSErrors). RuntimeError: jgo's "not in the repository".
                    if isinstance(error := task.exception(), OSError | RuntimeError):
                        source = "[local] maven_repository" if repository else "the public Maven repository"
                        what = type(error).__name__ if isinstance(error, OSError) else "not found"
                        raise ServerMissing(f"{tasks[task].coordinates} did not come from {source} ({what})") from error
                    task.result()
            finally:
                pool.shutdown(cancel_futures=True)  # after an error or Ctrl-C, what has not begun does not begin

    return fetch
