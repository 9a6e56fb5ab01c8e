"""MOEPROF_GPU builds what it asks for or fails in words; it is never passed over in silence."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GPU = ROOT / "native/gpu"
CMAKE = shutil.which("cmake", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
needs_cmake = pytest.mark.skipif(CMAKE is None, reason="no CMake is here")


def environment(**changes: str | None) -> dict[str, str]:
    """Ours with `changes`, without what MOEPROF_* here would say; None removes."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("MOEPROF_")}
    merged = {**own, **changes}
    return {name: value for name, value in merged.items() if value is not None}


def nvcc(folder: Path, body: str) -> Path:
    """`folder`/bin/nvcc, a shell script of `body`; the folder serves as CUDA_HOME."""
    program = folder / "bin/nvcc"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)
    return program


def answer(folder: Path, script: str, shown: str, *settings: str, **env: str) -> tuple[int, str]:
    """Exit code and text (in one line) of CMake reading `script` and printing `shown`."""
    listing = folder / "ask.cmake"
    listing.write_text(f'include({GPU}/{script})\nmessage(STATUS "answer {shown}")\n')
    command = [str(CMAKE), *settings, "-P", str(listing)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(**env))
    return done.returncode, " ".join((done.stdout + done.stderr).split())


@needs_cmake
@pytest.mark.parametrize(
    ("given", "meant"),
    [
        *(("ON", "ON"), ("on", "ON"), ("1", "ON"), ("Yes", "ON"), ("TRUE", "ON")),
        *(("OFF", "OFF"), ("off", "OFF"), ("0", "OFF"), ("no", "OFF"), ("FALSE", "OFF")),
        *(("auto", "AUTO"), ("", "AUTO"), ("hip", "HIP"), ("HIP", "HIP")),
    ],
)
def test_any_case_and_cmakes_usual_words_are_taken(tmp_path, given, meant):
    code, text = answer(tmp_path, "choice.cmake", "${MOEPROF_GPU}.", f"-DMOEPROF_GPU={given}")
    assert code == 0, text
    assert f"answer {meant}." in text


@needs_cmake
@pytest.mark.parametrize("given", ["banana", "2", "ONN", " "])
def test_another_word_is_refused_with_those_allowed(tmp_path, given):
    code, text = answer(tmp_path, "choice.cmake", "", f"-DMOEPROF_GPU={given}")
    assert code != 0
    assert f"MOEPROF_GPU: expected ON, OFF, AUTO or HIP, found '{given}'" in text


@needs_cmake
@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("echo release 11.8, V11.8.89", "of CUDA 11.8; set CUDA_HOME to a newer CUDA toolkit"),
        ("exit 3", "which does not run (--version ended with: 3)"),
        ("echo hello", "whose --version names no release"),
    ],
)
def test_an_nvcc_that_does_not_fit_is_named_with_why(tmp_path, body, found):
    program = nvcc(tmp_path / "cuda", body)
    code, text = answer(
        tmp_path, "wanted.cmake", "", "-DMOEPROF_GPU=ON", CUDA_HOME=str(tmp_path / "cuda")
    )
    assert code != 0
    assert f"expected nvcc 12.5 or newer, found {program}" in text
    assert found in text


@needs_cmake
def test_nvcc_on_path_goes_before_the_installers_place_and_cuda_home_before_it(tmp_path):
    on_path = nvcc(tmp_path / "path", "echo release 9.1, V9.1.0").parent
    path = f"{on_path}{os.pathsep}{os.environ['PATH']}"
    code, text = answer(tmp_path, "wanted.cmake", "", "-DMOEPROF_GPU=ON", CUDA_HOME="", PATH=path)
    assert code != 0
    assert f"found {on_path}/nvcc of CUDA 9.1" in text
    home = nvcc(tmp_path / "home", "echo release 9.2, V9.2.0")
    code, text = answer(
        tmp_path,
        "wanted.cmake",
        "",
        "-DMOEPROF_GPU=ON",
        CUDA_HOME=str(tmp_path / "home"),
        PATH=path,
    )
    assert code != 0
    assert f"found {home} of CUDA 9.2" in text


def make_wheel(out: Path, **env: str | None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps"]
    command += ["-C", f"build-dir={out}/build", "-w", str(out), str(ROOT)]
    return subprocess.run(command, capture_output=True, text=True, env=environment(**env))


@needs_cmake
@pytest.mark.parametrize(
    ("given", "expected"),
    [("ON", "of CUDA 11.8; set"), ("banana", "found 'banana'")],
)
def test_an_install_that_cannot_do_what_it_is_asked_fails(tmp_path, given, expected):
    nvcc(tmp_path / "cuda", "echo release 11.8, V11.8.89")
    done = make_wheel(tmp_path, MOEPROF_GPU=given, CUDA_HOME=str(tmp_path / "cuda"))
    assert done.returncode != 0
    assert expected in " ".join((done.stdout + done.stderr).split())
    assert not list(tmp_path.glob("*.whl"))


@needs_cmake
@pytest.mark.parametrize("given", [None, "auto", "OFF"])
def test_without_a_compiler_the_slow_twins_are_installed_where_no_gpu_is_asked_for(tmp_path, given):
    done = make_wheel(tmp_path, MOEPROF_GPU=given, CXX=str(tmp_path / "no-compiler"))
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert not [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".so")]


@pytest.mark.parametrize(
    ("script", "env", "expected"),
    [
        ("build.sh", {"MOEPROF_GPU": "OFF"}, "builds with MOEPROF_GPU=ON, found MOEPROF_GPU=OFF"),
        ("build.sh", {"MOEPROF_GPU": "no"}, "builds with MOEPROF_GPU=ON, found MOEPROF_GPU=no"),
        (
            "hip/build.sh",
            {"MOEPROF_GPU": "on"},
            "builds with MOEPROF_GPU=HIP, found",
        ),
        ("build.sh", {"MOEPROF_GPU": "banana"}, "expected ON, OFF, AUTO or HIP, found 'banana'"),
        ("build.sh", {"PYTHON": "/nope"}, "expected a Python with jax, found no /nope"),
        ("hip/build.sh", {"PYTHON": "/bin/false"}, "expected a Python with jax, found /bin/false"),
    ],
)
def test_build_scripts_say_in_one_line_what_keeps_them_from_building(
    tmp_path, script, env, expected
):
    command = ["bash", str(GPU / script), str(tmp_path / "build")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(**env))
    assert done.returncode == 2
    assert expected in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "build").exists()
