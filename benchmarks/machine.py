"""Facts about the machine that a figure was measured on."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def facts() -> dict[str, object]:
    """Processor, cores available, memory in GiB, load of the last minute, Python."""
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.processor(),
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory, 1),
        "load_1min": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
    }


def cpu_s(pid: int) -> float:
    """User and system seconds so far of a process and of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
