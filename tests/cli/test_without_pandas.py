"""What a command must not load: pandas and pyarrow take longer than reading a small profile."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from builders.cpu_run import cpu_file
from builders.hlo import computation, hlo_proto, op
from builders.xspace import Plane, event, line, metadata, xspace
from click.testing import CliRunner

from moeprof.cli import kept
from moeprof.cli.main import group

GRAPHS = "gpu/sparse-gmm-deepep-graphs/plugins/profile/run/node0-p0.xplane.pb.gz"
CODE = """
import sys
from moeprof.cli.main import main
try:
    main()
finally:
    print(sorted({"pandas", "pyarrow"} & set(sys.modules)), file=sys.stderr)
"""


def printed(*arguments: object) -> str:
    """What `moeprof analyze` prints in a process that loads neither of the two."""
    command = [sys.executable, "-c", CODE, "analyze", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "[]\n")
    return done.stdout


def cpu_profile(folder: Path) -> Path:
    file = folder / "cpu.xplane.pb"
    file.write_bytes(cpu_file())
    return file


def gpu_profile(folder: Path) -> Path:
    """A recorded profile without the run folder around it, whose routing is in Parquet files."""
    file = folder / "gpu.xplane.pb.gz"
    file.write_bytes((Path(__file__).parents[1] / "data" / GRAPHS).read_bytes())
    return file


def tpu_profile(folder: Path) -> Path:
    text = "%dot.4 = f32[16]{0} dot(f32[8]{0} %p, f32[8]{0} %p)"
    starts = [1000 * run + 10 for run in range(3)]
    core = Plane(
        "/device:TPU:0",
        (
            line("XLA Modules", *(event("jit_step(7)", at, 200) for at in starts)),
            line("XLA Ops", *(event(text, at, 70) for at in starts)),
        ),
        stats={"device_type_string": "TPU v5p"},
        name_stats={text: {"program_id": 7}},
    )
    program = hlo_proto(computation("main", op("dot.4", "dot", "f32[16]")))
    file = folder / "tpu.xplane.pb"
    file.write_bytes(xspace(metadata(p7=program), core))
    return file


@pytest.mark.parametrize(
    ("profile", "platform", "resolved", "calls"),
    [
        (cpu_profile, "cpu", "18 of 18 device events", 3),
        # 2,664 pieces, 6 of each device outside of every step: 663 per device and step of two each
        (gpu_profile, "gpu", "50.3 % by their order in GPU graphs", 663),
        (tpu_profile, "tpu", "3 of 3 device events", 1),
    ],
    ids=["cpu", "gpu", "tpu"],
)
def test_a_profile_is_broken_down_without_pandas(tmp_path, profile, platform, resolved, calls):
    document = json.loads(printed(profile(tmp_path), "--only", "breakdown", "--json"))
    assert document["run"]["platform"] == platform
    (detail,) = [law["detail"] for law in document["trust"] if law["check"] == "resolved"]
    assert resolved in detail
    rows = document["analyses"]["breakdown"]["rows"]
    assert sum(row["calls"] for row in rows) == calls


@pytest.mark.parametrize("how", [(), ("--json",)], ids=["text", "json"])
def test_a_second_look_needs_no_pandas(tmp_path, monkeypatch, how):
    monkeypatch.setenv(kept.VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "100")  # else text is as wide as the place that it goes to
    asked = [str(cpu_profile(tmp_path)), *how]
    first = CliRunner().invoke(group, ["analyze", *asked])
    assert kept.kept()[0] == 1
    assert printed(*asked) == first.stdout
