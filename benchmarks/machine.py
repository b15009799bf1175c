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
