"""Fuzzing of what the Redis module reads: `python -m tests.fuzz.run --seconds 60`; the last line is one JSON object.

With clang the fuzzer is libFuzzer, with gcc alone a small one of our own (driver.c). Both under ASan and UBSan. An
input that crashes is kept in .towline/fuzz; give it to the target's program, which is there too, to see it again.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from native.redis_module.compiler import CORE, BuildFailed, CompilerMissing, build

HERE = Path(__file__).parent
COUNTING = HERE.parent / "native" / "redis_module" / "counting.c"
TARGETS = ("apply", "read", "saved", "spec")
SANITIZED = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-g", "-O1")
INCLUDES = (f"-I{HERE}", f"-I{COUNTING.parent}")
INPUT_BYTES = 4096
SLOW_S = 30.0  # a single input: a target that stands still is a find, too


@dataclass(frozen=True)
class Fuzzed:
    """What came of a target. find: the input that crashed, "" if none did; said: what the program said then."""

    runs: int
    edges: int
    find: str = ""
    said: str = ""


@dataclass(frozen=True)
class Fuzzer:
    """Built targets in a folder, which keeps what they find."""

    folder: Path
    name: str

    def fuzz(self, target: str, seconds: float, seed: int) -> Fuzzed:
        """Run a target for a while from seeds that follow from `seed`."""
        place = self.folder / target
        seeds = place / "seeds"
        shutil.rmtree(place, ignore_errors=True)
        seeds.mkdir(parents=True)
        draw = random.Random(seed)
        for number in range(32):
            (seeds / f"{number:02}").write_bytes(draw.randbytes(32 << number % 7))
        program = [str(self.folder / f"fuzz_{target}")]
        if self.name == "libFuzzer":
            program += [
                str(seeds),
                f"-max_total_time={max(1, round(seconds))}",
                f"-max_len={INPUT_BYTES}",
                f"-seed={seed}",
            ]
            program += [f"-timeout={SLOW_S:.0f}", f"-artifact_prefix={place}/", "-print_final_stats=1"]
        else:
            program += [str(seeds), str(seconds), str(seed)]
        try:
            done = subprocess.run(
                program, capture_output=True, text=True, errors="replace", check=False, timeout=seconds + 2 * SLOW_S
            )
            said, failed = done.stdout + done.stderr, done.returncode != 0
        except subprocess.TimeoutExpired:
            said, failed = "it did not end", True
        found = self._find(place) if failed else ""
        return Fuzzed(self._number(said, "runs"), self._number(said, "edges"), found, said[-4000:] if failed else "")

    def _find(self, place: Path) -> str:
        if self.name == "libFuzzer":
            return str(next((path for path in place.iterdir() if path.is_file()), place))
        last = (place / "last-input").read_bytes()
        find = place / "find"
        find.write_bytes(last[8 : 8 + int.from_bytes(last[:8], "little")])
        return str(find)

    def _number(self, said: str, name: str) -> int:
        pattern = {"runs": r"number_of_executed_units:\s*(\d+)", "edges": r"cov: (\d+)"}[name]
        numbers = re.findall(pattern if self.name == "libFuzzer" else rf"{name} (\d+)", said)
        return int(numbers[-1]) if numbers else 0


def make_fuzzer(folder: Path, targets: tuple[str, ...] = TARGETS, *, own: bool = False) -> Fuzzer:
    """Build `targets` into `folder`; own: with driver.c even where clang is. Raises CompilerMissing and BuildFailed."""
    folder.mkdir(parents=True, exist_ok=True)
    clang = None if own else shutil.which("clang")
    if clang:
        environ = {**os.environ, "CC": clang}
        try:
            _build(folder, targets, ("-fsanitize=fuzzer-no-link",), ("-fsanitize=fuzzer",), environ)
        except BuildFailed as failed:  # a clang without its runtime libraries
            if "libclang_rt" not in str(failed):
                raise
        else:
            return Fuzzer(folder, "libFuzzer")
    driver = build(folder / "driver.o", [HERE / "driver.c"], "-c")  # neither sanitized nor traced: it is the tracer
    _build(folder, targets, ("-fsanitize-coverage=trace-pc",), (str(driver),), os.environ)
    return Fuzzer(folder, "driver.c")


def _build(
    folder: Path, targets: tuple[str, ...], traced: tuple[str, ...], fuzzer: tuple[str, ...], environ: Mapping[str, str]
) -> None:
    flags = (*INCLUDES, *SANITIZED, *traced, "-Wno-unused-command-line-argument")  # -lm, where nothing is linked

    def compiled(source: Path) -> Path:
        return build(folder / f"{source.stem}.o", [source], *flags, "-c", environ=environ)

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        shared = list(threads.map(compiled, [*CORE, HERE / "world.c", COUNTING]))
    for target in targets:
        sources = [HERE / f"fuzz_{target}.c", *shared]
        build(folder / f"fuzz_{target}", sources, *flags, *fuzzer, environ=environ)


def main() -> None:
    """Fuzz every target in turn. Ends with 1 if something was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="for each target")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--own", action="store_true", help="driver.c even where clang is installed")
    parser.add_argument(
        "targets", nargs="*", default=[], metavar="TARGET", help=f"of {', '.join(TARGETS)}; all by default"
    )
    arguments = parser.parse_args()
    targets = tuple(arguments.targets) or TARGETS
    if unknown := set(targets) - set(TARGETS):
        parser.error(f"no target {', '.join(sorted(unknown))}; there are {', '.join(TARGETS)}")
    try:
        fuzzer = make_fuzzer(Path(".towline", "fuzz"), targets, own=arguments.own)
    except (CompilerMissing, BuildFailed) as error:
        raise SystemExit(str(error)) from error
    results = {}
    for target in targets:
        results[target] = fuzzed = fuzzer.fuzz(target, arguments.seconds, arguments.seed)
        print(f"{target}: {fuzzed.runs:,} runs, {fuzzed.edges:,} edges", file=sys.stderr)
        if fuzzed.find:
            print(f"{fuzzed.said}\nfound by {fuzzed.find}", file=sys.stderr)
    finds = sum(bool(fuzzed.find) for fuzzed in results.values())
    told = {name: {k: v for k, v in asdict(fuzzed).items() if k != "said"} for name, fuzzed in results.items()}
    print(json.dumps({"fuzzer": fuzzer.name, "seconds_a_target": arguments.seconds, "finds": finds, "targets": told}))
    raise SystemExit(finds > 0)


if __name__ == "__main__":
    main()
