"""Question: what about this host may disturb a step, or keep the profiler from seeing the device?

Garbage collection, placement and settings disturb; `preflight` names the obstacles that can be seen
before the first step.
"""

from __future__ import annotations

import gc
import os
import resource
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from moeprof.redact import redacted_setting

LIMIT = 10_000  # garbage collections and compile events kept
_PREFIXES = ("JAX_", "XLA_", "NCCL_", "RCCL_", "CUDA_", "HIP_", "ROCR_", "HSA_", "LIBTPU_", "TPU_")
_NAMES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "LD_PRELOAD", "MALLOC_CONF")
_SECRETS = ("KEY", "TOKEN", "SECRET", "PASSWORD", "CREDENTIAL")
NVIDIA_PARAMS = Path("/proc/driver/nvidia/params")
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_TRUE = ("1", "true", "yes", "on", "y", "t")


class GarbagePauses:
    """Collects the times of garbage collections while installed."""

    def __init__(self) -> None:
        """Collect nothing yet."""
        self.pauses: list[dict[str, int]] = []
        self._start_ns = 0

    def install(self) -> None:
        """Begin."""
        gc.callbacks.append(self._on_gc)

    def remove(self) -> None:
        """End."""
        if self._on_gc in gc.callbacks:
            gc.callbacks.remove(self._on_gc)

    def _on_gc(self, phase: str, info: Mapping[str, int]) -> None:
        if phase == "start":
            self._start_ns = time.time_ns()
        elif self._start_ns and len(self.pauses) < LIMIT:
            self.pauses.append(
                {
                    "start_epoch_ns": self._start_ns,
                    "duration_ns": time.time_ns() - self._start_ns,
                    "generation": info["generation"],
                    "collected": info["collected"],
                }
            )


def relevant_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables that steer JAX, XLA, collectives and threads; names that look secret are left.

    Secrets in values, as in the address of a cache, are taken out.
    """
    return {
        name: redacted_setting(name, value)
        for name, value in sorted(environment.items())
        if (name.startswith(_PREFIXES) or name in _NAMES)
        and not any(secret in name for secret in _SECRETS)
    }


def placement() -> dict[str, object]:
    """Where this process may run: cores, their NUMA nodes, and memory it may use."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "affinity_cores": cores,
        "cores": os.cpu_count(),
        "numa_nodes": _numa_nodes(set(cores)),
        "numa_memory_nodes": _status_field("Mems_allowed_list"),
    }


def machine_id() -> str:
    """What all processes of this machine share, whose clock is one; empty where nothing tells.

    The id that the kernel takes as it boots, in containers too.
    """
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return ""


def host_memory() -> dict[str, int]:
    """Resident size of this process, now and at its largest, in bytes."""
    # Linux counts ru_maxrss in KiB, macOS in bytes.
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    resident = _status_field("VmRSS")
    now = int(resident.split()[0]) * 1024 if resident else peak
    return {"resident_bytes": now, "resident_peak_bytes": peak}


def _status_field(name: str) -> str | None:
    """One field of /proc/self/status, None where there is no such file."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    found = (line.partition(":")[2].strip() for line in lines if line.startswith(name + ":"))
    return next(found, None)


def _numa_nodes(cores: set[int]) -> list[int]:
    """NUMA nodes that hold any of `cores`."""
    nodes = []
    for node in Path("/sys/devices/system/node").glob("node[0-9]*"):
        try:
            listed = parse_core_list((node / "cpulist").read_text())
        except OSError:
            continue
        if listed & cores:
            nodes.append(int(node.name.removeprefix("node")))
    return sorted(nodes)


def parse_core_list(text: str) -> set[int]:
    """Linux' list of cores: ``"0-3,8"`` is {0, 1, 2, 3, 8}."""
    cores: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first:
            cores.update(range(int(first), int(last or first) + 1))
    return cores


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
