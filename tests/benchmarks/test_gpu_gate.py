"""Without a GPU, or with wrong arguments, no measurement begins and no committed result changes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from builders import processes

from .conftest import BENCHMARKS

RESULTS = BENCHMARKS / "results"
ONE = (
    "test",
    "products",
    "gemm",
    "ab-one-gpu",
    "convergence",
    "sanitize",
    "stress",
    "steps",
    "plans",
    "whole",
)
TWO = ("processes", "exchange", "native", "exchange_processes", "ab", "capture", "maxtext")


def environment_of(**more: str) -> dict[str, str]:
    """Where no GPU is seen, even if there is one."""
    kept = {name: text for name, text in os.environ.items() if name not in ("OUT", "LIMIT_S")}
    return {**kept, "PYTHON": sys.executable, "CUDA_VISIBLE_DEVICES": "", **more}


def called(name: str, *arguments: str, cwd: Path | None = None, **more: str):
    """A script or program of the folder, ended."""
    program = str(BENCHMARKS / name)
    command = [sys.executable, program] if name.endswith(".py") else [program]
    return subprocess.run(
        [*command, *arguments],
        capture_output=True,
        text=True,
        env=environment_of(**more),
        timeout=60,
        cwd=cwd,
    )


def state(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Every file with its time and contents."""
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes())
        for path in folder.rglob("*")
        if path.is_file()
    }


def refused(done, *lines: str) -> None:
    """Status 2 and these lines alone."""
    assert (done.returncode, done.stdout, done.stderr.splitlines()) == (2, "", list(lines))


def test_no_part_begins_without_its_gpus_and_results_stay():
    before = state(RESULTS)
    done = called("gpu.sh", "build", *ONE, *TWO)
    refused(
        done,
        *(f"benchmarks/gpu.sh {part}: expected 1 NVIDIA GPU, found none" for part in ONE),
        *(f"benchmarks/gpu.sh {part}: expected 2 NVIDIA GPUs, found none" for part in TWO),
    )
    assert state(RESULTS) == before


@pytest.mark.parametrize(
    ("name", "options", "needed"),
    [
        ("gpu/ab.py", (), 2),
        ("gpu/ab.py", ("--devices", "1"), 1),
        ("gpu/convergence.py", (), 1),
        ("gpu/exchange.py", (), 2),
        ("gpu/exchange_native.py", (), 2),
        ("gpu/exchange_processes.py", (), 2),
        ("gpu/grouped_gemm.py", (), 1),
        ("gpu/memory.py", (), 2),
        ("gpu/products.py", ("build/gpu",), 1),
        ("gpu/sanitize.py", (), 1),
    ],
)
def test_a_program_refuses_a_machine_without_gpus(name, options, needed):
    before = state(RESULTS)
    noun = "GPU" if needed == 1 else "GPUs"
    refused(
        called(name, *options), f"{Path(name).name}: expected {needed} NVIDIA {noun}, found none"
    )
    assert state(RESULTS) == before


@pytest.mark.parametrize(
    ("name", "arguments", "who", "needed"),
    [
        ("gpu/exchange.sh", ("OUT", "rounds"), "gpu/exchange.sh rounds", "1 NVIDIA GPU"),
        ("gpu/processes.sh", ("OUT",), "gpu/processes.sh", "2 NVIDIA GPUs"),
        ("gpu/tests.sh", (), "gpu/tests.sh", "1 NVIDIA GPU"),
        ("gpu/captures.sh", ("OUT/a.tar.gz",), "gpu/captures.sh", "2 NVIDIA GPUs"),
    ],
)
def test_a_script_refuses_and_leaves_no_folder(tmp_path, name, arguments, who, needed):
    out, sources = tmp_path / "out", tmp_path / "sources"
    texts = [text.replace("OUT", str(out)) for text in arguments]
    done = called(name, *texts, cwd=tmp_path, OUT=str(out), MOEPROF_SOURCES=str(sources))
    refused(done, f"benchmarks/{who}: expected {needed}, found none")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("part", ["gem", "./build", "a.b", "ab_one_gpu", ""])
def test_all_names_are_checked_before_any_part_runs(tmp_path, part):
    done = called("gpu.sh", "build", part, OUT=str(tmp_path / "out"))
    refused(done, f"{part}: expected a part; benchmarks/gpu.sh --help lists them")
    assert list(tmp_path.iterdir()) == []


def test_a_limit_and_a_folder_that_cannot_be(tmp_path):
    wrong = "LIMIT_S: expected whole seconds of at least 1, found abc"
    refused(called("gpu.sh", "build", LIMIT_S="abc"), wrong)
    file = tmp_path / "file"
    file.touch()
    refused(
        called("gpu.sh", "build", OUT=str(file)),
        f"OUT: expected a folder that can be written, found {file}; name another",
    )
    refused(
        called("gpu.sh", "build", PYTHON="no-such-python"),
        "PYTHON: expected a Python that starts, found no-such-python; name another",
    )


@pytest.mark.parametrize(
    "name",
    ["gpu.sh", "gpu/exchange.sh", "gpu/processes.sh", "gpu/tests.sh", "gpu/captures.sh"],
)
def test_help_says_how_to_call_it_from_any_folder(tmp_path, name):
    done = called(name, "--help", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"benchmarks/{name}" in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["gpu.sh", "gpu/captures.sh"])
def test_without_arguments_the_usage_is_an_error(name):
    done = called(name)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"benchmarks/{name}" in done.stderr


@pytest.fixture
def two_gpus(tmp_path: Path) -> dict[str, str]:
    """Variables of a machine whose nvidia-smi lists two GPUs, and whose programs are stand-ins.

    A stand-in starts a sleeper in a session of its own, writes both ids to PIDS and sleeps.
    """
    folder = tmp_path / "bin"
    folder.mkdir()
    listing = 'printf "GPU 0: NVIDIA H200 (UUID: a)\\nGPU 1: NVIDIA H200 (UUID: b)\\n"'
    pids = tmp_path / "pids"
    sleeper = (
        "import os, subprocess, sys, time\n"
        "child = subprocess.Popen(['sleep', '300'], start_new_session=True)\n"
        f"open({str(pids) + '.part'!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}')\n"
        f"os.rename({str(pids) + '.part'!r}, {str(pids)!r})\n"
        "time.sleep(300)\n"
    )
    (tmp_path / "sleeper.py").write_text(sleeper)
    (folder / "nvidia-smi").write_text(f"#!/bin/sh\n{listing}\n")
    (folder / "python").write_text(
        '#!/bin/sh\ncase "$1" in\n'
        f'  -c | *gpu/gate.py) exec {sys.executable} "$@" ;;\n'
        f"esac\nexec {sys.executable} {tmp_path / 'sleeper.py'}\n"
    )
    for program in folder.iterdir():
        program.chmod(0o755)
    return {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "PYTHON": str(folder / "python"),
        "CUDA_VISIBLE_DEVICES": "0,1",
        "PIDS": str(pids),
        "OUT": str(tmp_path / "out"),
    }


def is_running(pid: int) -> bool:
    """Not ended; one that nobody has waited for yet has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def has_ended(pid: int) -> bool:
    """Soon: the kernel takes a moment to put away what was killed."""
    end = time.monotonic() + 10
    while is_running(pid) and time.monotonic() < end:
        time.sleep(0.05)
    return not is_running(pid)


def started(pids: Path) -> list[int]:
    """Both ids, once the stand-in has written them."""
    end = time.monotonic() + 30
    while not pids.exists():
        assert time.monotonic() < end
        time.sleep(0.05)
    return [int(text) for text in pids.read_text().split()]


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)]
)
def test_a_signal_ends_what_a_part_started(two_gpus, number, status):
    running: list[int] = []
    try:
        with processes.started(
            [str(BENCHMARKS / "gpu.sh"), "ab", "gemm"],
            env=environment_of(**two_gpus),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as script:
            running = started(Path(two_gpus["PIDS"]))
            assert all(is_running(pid) for pid in running)
            script.send_signal(number)
            out, problems = script.communicate(timeout=30)
        assert all(has_ended(pid) for pid in running)
    finally:
        for pid in running:
            processes.kill(pid)
    assert (script.returncode, out) == (status, "== ab\n")
    assert "stopped by a signal" in problems
    assert [path.name for path in Path(two_gpus["OUT"]).iterdir()] == ["ab.log"]


def test_a_part_past_its_limit_leaves_nothing_running(two_gpus):
    done = called("gpu.sh", "ab", "gemm", **two_gpus, LIMIT_S="6")
    running = started(Path(two_gpus["PIDS"]))
    assert done.returncode == 2  # both parts
    assert "FAILED ab: more than " in done.stdout
    assert "FAILED gemm: not started, the time of all parts is over" in done.stdout
    assert all(has_ended(pid) for pid in running)


def test_a_failed_capture_leaves_no_archive_and_removes_only_its_own(two_gpus, tmp_path):
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "kept").touch()
    (tmp_path / "sleeper.py").write_text("raise SystemExit(3)")
    done = called(
        "gpu/captures.sh", "a.tar.gz", **two_gpus, MOEPROF_SOURCES=str(sources), cwd=tmp_path
    )
    assert (done.returncode, done.stderr) == (3, "")
    assert not (tmp_path / "a.tar.gz").exists()
    assert [path.name for path in sources.iterdir()] == ["kept"]


def test_sources_of_others_are_left_alone(two_gpus, tmp_path):
    (tmp_path / "sources" / "captures").mkdir(parents=True)
    sources = str(tmp_path / "sources")
    done = called("gpu/captures.sh", "a.tar.gz", **two_gpus, MOEPROF_SOURCES=sources, cwd=tmp_path)
    assert done.returncode == 2
    assert "expected neither moeprof nor captures in it" in done.stderr
    assert (tmp_path / "sources" / "captures").is_dir()


@pytest.mark.parametrize(
    ("found", "visible", "left"),
    [
        (2, None, 2),
        (2, "", 0),
        (2, "1", 1),
        (2, "0,1", 2),
        (2, "-1", 0),
        (2, "0,2", 1),
        (0, "0", 0),
    ],
)
def test_gpus_that_a_process_may_use(program, found, visible, left):
    assert program("gpu.gate").gpus_named(found, visible) == left


def test_slices_of_a_gpu_are_no_gpus(program):
    listed = "GPU 0: NVIDIA H100 (UUID: GPU-a)\n  MIG 1g.10gb Device 0: (UUID: MIG-b)\n"
    assert program("gpu.gate").gpus_listed(listed) == 1
    assert program("gpu.gate").gpus_listed("No devices found.\n") == 0


def test_tiny_sizes_never_replace_figures_of_gpus(program, tmp_path):
    gate, out = program("gpu.gate"), tmp_path / "r.json"
    assert gate.wrong_file(out, smoke=True) == ""
    gate.write_result(out, {"machine": {"cards": []}})
    assert gate.wrong_file(out, smoke=True) == ""
    gate.write_result(out, {"machine": {"cards": ["NVIDIA H200"]}})
    assert gate.wrong_file(out, smoke=False) == ""
    assert "expected no figures of GPUs under --smoke" in gate.wrong_file(out, smoke=True)
    absent = tmp_path / "absent" / "r.json"
    assert f"expected a folder {absent.parent}" in gate.wrong_file(absent, smoke=False)


def test_a_result_is_replaced_whole_or_not_at_all(program, tmp_path):
    gate, out = program("gpu.gate"), tmp_path / "r.json"
    gate.write_result(out, {"rows": [1]})
    with pytest.raises(TypeError):
        gate.write_result(out, {"rows": [object()]})
    assert json.loads(out.read_text()) == {"rows": [1]}
    assert list(tmp_path.iterdir()) == [out]


def test_products_need_torch_before_anything_is_built(program, monkeypatch):
    products = program("gpu.products")
    monkeypatch.setattr(program("gpu.gate"), "count_gpus", lambda: 1)
    monkeypatch.setattr(products.importlib.util, "find_spec", lambda _: None)
    monkeypatch.setattr(sys, "argv", ["products.py", "build/gpu"])
    with pytest.raises(SystemExit, match=r"products.py: expected torch in .*, found none"):
        products.main()


def test_a_sanitizer_or_a_program_that_is_missing_is_named(program, monkeypatch, tmp_path):
    sanitize = program("gpu.sanitize")
    monkeypatch.setattr(sanitize.shutil, "which", lambda _: None)
    assert sanitize.missing(sanitize.planted(), tmp_path).startswith("compute-sanitizer: expected")
    monkeypatch.setattr(sanitize.shutil, "which", lambda _: "/bin/compute-sanitizer")
    said = sanitize.missing(sanitize.planted(), tmp_path)
    assert said.startswith(f"{tmp_path / 'moeprof_gpu_planted_faults'}: expected a program")
