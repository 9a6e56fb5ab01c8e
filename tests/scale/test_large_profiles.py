"""Profiles of millions of events: bounded memory, the same answer on any number of threads."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from builders.big_xspace import gpu_profile
from click.testing import CliRunner

from moeprof.cli.main import group
from moeprof.ingest import open_run

GIB = 2**30


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Eight GPUs with 500,000 kernels each, and a host with 1,000,000 Python calls."""
    file = tmp_path_factory.mktemp("large") / "node0.xplane.pb"
    file.write_bytes(gpu_profile(devices=8, steps=10, kernels=50_000, python_calls=1_000_000))
    yield file
    file.unlink()


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "moeprof", *map(str, arguments)]


def analyzed(file: Path, threads: int) -> tuple[str, int]:
    """JSON of the breakdown and the peak resident bytes of the process."""
    output = file.with_suffix(f".{threads}.json")
    with output.open("wb") as target:
        process = subprocess.Popen(
            command("analyze", "--only", "breakdown", "--json", file),
            stdout=target,
            env={**os.environ, "MOEPROF_THREADS": str(threads)},
        )
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return output.read_text(), used.ru_maxrss * 1024


def test_five_million_events_take_less_than_4_gib_and_threads_change_nothing(large):
    alone, peak_bytes = analyzed(large, threads=1)
    together, _ = analyzed(large, threads=4)
    assert alone == together
    assert peak_bytes < 4 * GIB
    document = json.loads(alone)
    assert document["run"]["devices"] == 8
    rows = document["analyses"]["breakdown"]["rows"]
    # 50,000 kernels per device and step, whatever part they are of
    assert sum(row["calls"] for row in rows) == pytest.approx(50_000)


def test_an_interrupt_ends_it_and_leaves_no_process(large):
    process = subprocess.Popen(
        command("analyze", large), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while not Path(f"/proc/{process.pid}/maps").read_text().count(large.name):
        assert process.poll() is None
        time.sleep(0.01)  # until the profile is open
    assert children.read_text() == ""
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode != 0
    assert b"Traceback" not in errors


def test_the_page_of_1_600_000_kernels_stays_small_and_self_contained(tmp_path):
    file = tmp_path / "node0.xplane.pb"
    file.write_bytes(gpu_profile(devices=8, steps=5, kernels=40_000))
    page = tmp_path / "report.html"
    outcome = CliRunner().invoke(group, ["report", str(file), "-o", str(page)])
    assert outcome.exit_code == 0, outcome.output
    content = page.read_text()
    assert len(content.encode()) <= 20_000_000
    assert 'src="http' not in content
    assert 'href="http' not in content


def test_python_calls_by_the_million_hide_no_kernel(tmp_path):
    file = tmp_path / "node0.xplane.pb"
    file.write_bytes(gpu_profile(devices=1, steps=3, kernels=10_000, python_calls=1_050_000))
    trace = open_run(file)
    assert len(trace.events) == 30_000
    assert trace.steps["used"].tolist() == [True, True, True]
    counts = dict(zip(trace.dropped["what"], trace.dropped["count"], strict=True))
    assert counts["Python calls"] == 1_050_000
