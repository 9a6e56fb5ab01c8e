"""The stress programs of native/stress/threads.cmake, built for a test: one target each."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

NATIVE = Path(__file__).parents[2] / "native"


def build(name: str, folder: Path) -> Path:
    """``moeprof_NAME`` without the thread sanitizer, which `make stress` adds."""
    # CMake may be that of this Python's environment alone.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    cmake = shutil.which("cmake", path=path) or "cmake"
    generator = ["-G", "Ninja"] if shutil.which("ninja", path=path) else []
    options = ["-DMOEPROF_STRESS=ON", "-DMOEPROF_TSAN=OFF", "-DMOEPROF_WERROR=ON"]
    settings = {**os.environ, "PATH": path}
    configure = [cmake, "-S", str(NATIVE), "-B", str(folder), *generator, *options]
    subprocess.run(configure, check=True, env=settings, stdout=subprocess.DEVNULL)
    target = f"moeprof_{name}"
    make = [cmake, "--build", str(folder), "--target", target]
    subprocess.run(make, check=True, env=settings, stdout=subprocess.DEVNULL)
    return folder / target
