"""Are the sources that both NVIDIA's and AMD's compilers read free of what only one knows?

The HIP library is made of all sources of ``native/gpu`` but those that ``hip/CMakeLists.txt``
filters out. Nothing of it has run on an AMD GPU, so a compiler's word is all there is.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NATIVE = ROOT / "native"
# These say what a name means for each maker; all others use the name.
DEFINITIONS = {
    "gpu/runtime/gpu_runtime.h",
    "gpu/runtime/device_code_cuda.h",
    "gpu/runtime/half_types.h",
    "gpu/runtime/early_launch.h",
    "gpu/runtime/host_and_device.h",
}
OF_CUDA = re.compile(
    r"\bcuda[A-Z_]\w*|<cuda\w*\.h>|\bcu[A-Z]\w*|_sync\(|\basm\b|__CUDACC__|__nv_\w+"
)
HEADERS = [Path(p) / "hip/hip_runtime.h" for p in ("/opt/rocm/include", "/usr/include")]
COMPILERS = ("amdclang++", "hipcc", "clang++-21", "clang++-20", "clang++-19")
HAS_HIP = any(h.exists() for h in HEADERS) and any(map(shutil.which, COMPILERS))
# The tests' environment brings its own and need not be on PATH.
CMAKE = shutil.which("cmake", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")


def portable_sources() -> list[Path]:
    """The sources of the HIP library: those that no filter of its CMake file takes out."""
    text = (NATIVE / "gpu/hip/CMakeLists.txt").read_text()
    filters = re.findall(r"EXCLUDE REGEX\s+\"([^\"]+)\"", text)
    assert len(filters) == 2
    left_out = [re.compile(f.replace("\\\\", "\\")) for f in filters]
    found = [p for p in (NATIVE / "gpu").rglob("*") if p.suffix in {".cc", ".cu"}]
    return sorted(p for p in found if not any(f.search(p.as_posix()) for f in left_out))


def with_headers(sources: list[Path]) -> set[Path]:
    """``sources`` and all headers of ours that they include, directly or not."""
    seen: set[Path] = set()
    waiting = list(sources)
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        names = re.findall(r"#include \"((?:gpu|common)/[^\"]+)\"", path.read_text())
        waiting += [NATIVE / name for name in names]
    return seen


def without_comments(text: str) -> str:
    return re.sub(r"//[^\n]*|\"(?:[^\"\\\n]|\\.)*\"", "", text)


def test_the_portable_sources_are_those_of_every_handler():
    names = {p.relative_to(NATIVE / "gpu").as_posix() for p in portable_sources()}
    assert {
        "exchange/moe_dispatch.cu",
        "exchange/moe_cached_dispatch.cu",
        "exchange/moe_combine.cu",
        "grouped_gemm/plan.cu",
        "grouped_gemm/simt.cu",
        "grouped_gemm/handler.cc",
        "grouped_gemm/variable_k_handler.cc",
        "meeting/process_seat_hip.cc",
    } <= names
    assert not {n for n in names if n.startswith("processes/") or "tiles" in n}
    assert "meeting/process_seat.cc" not in names


def test_portable_sources_name_nothing_that_is_cudas_alone():
    found = {}
    for path in with_headers(portable_sources()):
        name = path.relative_to(NATIVE).as_posix()
        words = OF_CUDA.findall(without_comments(path.read_text()))
        if words and name not in DEFINITIONS:
            found[name] = sorted(set(words))
    assert found == {}, "use the names of gpu/runtime/gpu_runtime.h and gpu/runtime/device_code.h"


def test_the_cuda_library_takes_no_source_that_is_for_hip_alone():
    text = (NATIVE / "gpu/CMakeLists.txt").read_text()
    (left_out,) = re.findall(r"EXCLUDE REGEX \"([^\"]+)\"", text)
    of_hip = [p for p in (NATIVE / "gpu").rglob("*_hip.cc")]
    assert of_hip
    assert all(re.search(left_out.replace("\\\\", "\\"), p.as_posix()) for p in of_hip)


@pytest.mark.skipif(not (HAS_HIP and CMAKE), reason="no compiler for AMD GPUs is here")
def test_kernels_compile_for_mi300_without_a_warning(tmp_path):
    configure = [
        *(CMAKE, "-S", NATIVE, "-B", tmp_path, f"-DPython_EXECUTABLE={sys.executable}"),
        *("-DMOEPROF_CPU=OFF", "-DMOEPROF_GPU=HIP", "-DMOEPROF_WERROR=ON"),
        "-DMOEPROF_HIP_ARCHITECTURES=gfx942",
    ]
    build = [CMAKE, "--build", tmp_path, "--target", "moeprof_hip_kernels", "--parallel"]
    for command in (configure, build):
        done = subprocess.run(command, capture_output=True, text=True, timeout=280)
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    kernels = {p.stem for p in portable_sources() if p.suffix == ".cu"}
    objects = {p.stem: p for p in (tmp_path / "gpu/hip").glob("*.o")}
    assert objects.keys() == kernels
    for path in objects.values():
        assert b"amdgcn-amd-amdhsa--gfx942" in path.read_bytes()
