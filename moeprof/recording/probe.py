"""Question: which JAX, devices and kernels are here? Asked in a process of its own.

A plugin that hangs or crashes while it looks for devices then takes the probe down, not the one
who asks. `python -m moeprof.recording.probe` prints one JSON object.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from moeprof.interpreter import module_command

TIMEOUT_S = 60.0
PARTS = ("kernels", "native", "gpu_library", "gpu", "devices")


@dataclass(frozen=True)
class Finding:
    """What one part of the probe found, or why it found nothing (the other is None)."""

    found: str | None
    problem: str | None


def probe_machine(timeout_s: float = TIMEOUT_S) -> dict[str, Finding]:
    """Findings by name, as in `PARTS`."""
    environment = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    try:
        done = subprocess.run(
            module_command("moeprof.recording.probe"),
            capture_output=True,
            text=True,
            env=environment,
            timeout=timeout_s,
        )
        values = json.loads(done.stdout.splitlines()[-1])
        return {name: Finding(**finding) for name, finding in values.items()}
    except subprocess.TimeoutExpired:
        problem = f"JAX did not answer within {timeout_s:.0f} s; a device driver may hang"
    except (ValueError, IndexError):
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        problem = f"JAX did not start: {last}"
    return {name: Finding(None, problem) for name in PARTS}


def _devices() -> str:
    import jax

    from moeprof.errors import NativeError

    try:
        devices = jax.devices()
    except AssertionError as error:  # of jax, without a text, where no named backend is installed
        asked = os.environ.get("JAX_PLATFORMS")
        if str(error) or not asked:
            raise
        raise NativeError(f"JAX_PLATFORMS={asked}: JAX has no such backend here") from error
    kinds = sorted({device.device_kind for device in devices})
    return f"{len(devices)} × {', '.join(kinds)} ({jax.default_backend()})"


def _kernels() -> str:
    from moeprof.kernels import provider

    choice = provider.describe()
    return f"{choice.name}: {choice.reason}"


def _native() -> str:
    from moeprof.errors import NativeError
    from moeprof.kernels import provider

    choice = provider.describe()
    if choice.native_library is None:
        raise NativeError(choice.native_problem or "not used")
    return str(choice.native_library)


def _gpu_library() -> str:
    """The GPU library that loads here, on a machine with or without a GPU; empty: there is none."""
    from moeprof.kernels.backends import gpu_library

    if gpu_library.is_absent():
        return ""
    gpu_library.load()
    return str(gpu_library.library_path())


def _gpu() -> str:
    from moeprof.errors import NativeError
    from moeprof.kernels.backends import gpu_library

    reason = gpu_library.unavailable_reason()
    if reason is not None:
        raise NativeError(reason)
    return str(gpu_library.library_path())


def _finding(ask: Callable[[], str]) -> dict[str, Any]:
    try:
        return asdict(Finding(ask(), None))
    except Exception as error:
        return asdict(Finding(None, str(error).strip().split("\n", 1)[0] or type(error).__name__))


def main() -> None:
    """Print the findings of this process as one line of JSON."""
    asked = dict(zip(PARTS, (_kernels, _native, _gpu_library, _gpu, _devices), strict=True))
    print(json.dumps({name: _finding(ask) for name, ask in asked.items()}))


if __name__ == "__main__":
    main()
