"""Question: which GPUs, driver and versions were figures measured with?"""

from __future__ import annotations

import datetime
import platform
import shutil
import subprocess
from typing import Any

from machine import version_or_none

_PACKAGES = ("jax", "jaxlib", "jax-cuda13-plugin", "torch", "optax", "numpy")


def gpu_machine() -> dict[str, Any]:
    """Cards with driver and memory, versions, and the date; starts no backend.

    ``cards`` is empty where there is no NVIDIA GPU. ``nvcc`` is the release of the compiler on the
    path, or "none".
    """
    return {
        "cards": _cards(),
        "python": platform.python_version(),
        "nvcc": _nvcc_release(),
        **{package.replace("-", "_"): version_or_none(package) for package in _PACKAGES},
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def _cards() -> list[str]:
    query = ["--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    return _lines("nvidia-smi", *query)


def _nvcc_release() -> str:
    releases = [line for line in _lines("nvcc", "--version") if "release" in line]
    return releases[0].split("release", 1)[1].split(",")[0].strip() if releases else "none"


def _lines(program: str, *arguments: str) -> list[str]:
    path = shutil.which(program)
    if path is None:
        return []
    done = subprocess.run([path, *arguments], capture_output=True, text=True, timeout=60)
    return done.stdout.strip().splitlines() if done.returncode == 0 else []
