"""Question: before the first step, what will keep the profiler from seeing the device?"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

NVIDIA_PARAMS = Path("/proc/driver/nvidia/params")
_TRUE = ("1", "true", "yes", "on", "y", "t")


@dataclass(frozen=True)
class Obstacle:
    """One obstacle: a stable name for scripts and a sentence that says what to do."""

    name: str
    text: str


def preflight(
    environment: Mapping[str, str], *, params: Path = NVIDIA_PARAMS, is_root: bool | None = None
) -> list[Obstacle]:
    """Obstacles that can be seen without starting JAX, most certain first.

    Args:
        environment: the environment that the script will get.
        params: the NVIDIA driver's parameter file; absent on a machine without that driver.
        is_root: whether the process may profile regardless; None asks the operating system.
    """
    found = []
    if _cupti_is_restricted(params) and not (os.geteuid() == 0 if is_root is None else is_root):
        found.append(
            Obstacle(
                "cupti-permission",
                "the NVIDIA driver lets only administrators profile (RmProfilingAdminOnly: 1), so "
                "GPU events will be missing. Set `options nvidia NVreg_RestrictProfilingToAdmin"
                "Users=0` in /etc/modprobe.d and reload the driver, or run with CAP_SYS_ADMIN.",
            )
        )
    if environment.get("JAX_ENABLE_PGLE", "").lower() in _TRUE:
        found.append(
            Obstacle(
                "pgle",
                "JAX_ENABLE_PGLE is on: JAX profiles its own first steps to recompile them, and "
                "only one profiler can run at a time. Unset it for this run.",
            )
        )
    if environment.get("NSYS_PROFILING_SESSION_ID"):
        found.append(
            Obstacle(
                "nsys",
                "NSYS_PROFILING_SESSION_ID is set: Nsight Systems holds CUPTI, so GPU events will "
                "be missing. Run without nsys.",
            )
        )
    return found


def _cupti_is_restricted(params: Path) -> bool:
    try:
        text = params.read_text(errors="replace")
    except OSError:
        return False
    fields = (line.partition(":") for line in text.splitlines())
    return any(
        key.strip() == "RmProfilingAdminOnly" and value.strip() == "1" for key, _, value in fields
    )
