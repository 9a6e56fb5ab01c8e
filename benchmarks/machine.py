"""Question: what were figures measured on?"""

from __future__ import annotations

import datetime
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def machine(*packages: str) -> dict[str, object]:
    """Processor, cores, load, system, Python, the versions of `packages`, and the date."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": models[0] if models else "unknown",
        "cores": os.cpu_count(),
        "load_before": round(os.getloadavg()[0], 2),
        "system": platform.platform(),
        "python": platform.python_version(),
        **{package: version_or_none(package) for package in packages},
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def environment(cache: str = "off") -> dict[str, str]:
    """Variables of a process that is timed: as installed, with bytecode of its modules.

    ``cache`` is where moeprof keeps answers; by default it keeps and uses none.
    """
    own = {**os.environ, "MOEPROF_CACHE": cache}
    own.pop("PYTHONDONTWRITEBYTECODE", None)
    return own


def version_or_none(package: str) -> str:
    """Of an installed package, else "none"."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"
