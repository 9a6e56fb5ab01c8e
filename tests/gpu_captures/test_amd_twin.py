"""The captures of every strategy as AMD's profiler would have recorded them: the answers are equal.

The right answers are those of the recorded files themselves: same program, same times. Both are
analyzed as if on one device (`HARDWARE`), so that shares of a peak are of one peak.
"""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import Any

import pytest
from builders.as_amd import SEEN, as_amd, kernel_name, names_in, write_twin

from moeprof.cli.findings import read_document
from moeprof.ingest import open_run
from moeprof.reports.run.document import to_json

DATA = Path(__file__).parents[1] / "data" / "gpu"
GRAPHS = "sparse-gmm-deepep-graphs"
NAMES = ["dense-cf1.25", "sparse-ragged-dot", "sparse-gmm", "sparse-gmm-deepep", GRAPHS]
HARDWARE = "h200_sxm"

DIFFERENT = {
    r"/run/(path|record/kinds\[\d+\])": "what was read, and the device's name",
    r"/run/events|/trust/truncated/detail": "the two annotations are no events",
    r"/run/notes\[\d+\]": "where the steps come from: executions instead of annotations",
    r"/trust/step_ways/(detail|verdict)": "the same: capture counted annotations, none is recorded",
    r"/trust/ranks/detail": "no ids of devices in the program's calls; the run record tells ranks",
    r".*/(kernel|most_frequent)(/names\[\d+\]|/names#len|/codes\[\d+\])?": "names of kernels",
    r"/analyses/launch/rows\[\d+\]/most_frequent_kernels": "RCCL's name is the same for any",
    r"/drawings/one_step/data/lane/names\[\d+\]": "the kinds of work behind a stream's number",
}
"""Places of a document that may differ, and why; all else is equal."""
OF_GRAPHS = {
    r"/analyses/launch/.*": "NVIDIA runs a copy of a graph as a kernel, which is launched as one",
    r"/drawings/one_step/data/kind/.*": "the same: AMD's blit kernels are copies everywhere",
}


@functools.cache
def twin(name: str, folder: Path) -> Path:
    return write_twin(DATA / name, folder / name)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("amd")


def document(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        to_json(read_document(run, (), None, (), HARDWARE, is_drawn=True))
    )
    return found | {"trust": {law["check"]: law for law in found["trust"]}}


def differences(first: Any, second: Any, place: str = "") -> list[tuple[str, Any, Any]]:
    """Places at which two documents differ, with what stands there."""
    if isinstance(first, dict) and isinstance(second, dict):
        keys = sorted(first.keys() | second.keys())
        parts = [(f"{place}/{key}", first.get(key), second.get(key)) for key in keys]
    elif isinstance(first, list) and isinstance(second, list):
        pairs = zip(first, second, strict=False)
        parts = [(f"{place}[{at}]", *pair) for at, pair in enumerate(pairs)]
        if len(first) != len(second):
            return [(f"{place}#len", len(first), len(second))] + [
                found for part in parts for found in differences(*part[1:], part[0])
            ]
    else:
        return [] if first == second else [(place, first, second)]
    return [found for part in parts for found in differences(*part[1:], part[0])]


@pytest.mark.parametrize("name", NAMES)
def test_every_answer_is_that_of_the_original(name, folder):
    allowed = [*DIFFERENT, *(OF_GRAPHS if name == GRAPHS else ())]
    found = differences(document(DATA / name), document(twin(name, folder)))
    other = [row for row in found if not any(re.fullmatch(place, row[0]) for place in allowed)]
    assert not other


@pytest.mark.parametrize("name", NAMES)
def test_a_twin_has_nothing_that_no_real_file_has(name, folder):
    (file,) = twin(name, folder).rglob("*.xplane.pb")
    for key, names in names_in(file.read_bytes()).items():
        assert names <= SEEN[key], key


def test_a_twin_is_known_by_its_facts_and_measured_by_its_own_peak(folder):
    """989.4 TFLOP/s in bf16 on the H200, 2516.6 on the MI355X: shares fall by that."""
    original, made = open_run(DATA / "sparse-gmm"), open_run(twin("sparse-gmm", folder))
    assert original.devices["model"].tolist() == ["NVIDIA H200"] * 2
    assert made.devices["model"].tolist() == ["AMD Instinct MI355X"] * 2
    from moeprof.analyzers.questions.roofline import roofline

    shares = [
        roofline(trace).table.set_index("op")["compute_share"].dropna()
        for trace in (original, made)
    ]
    assert len(shares[0]) > 5
    ratio = shares[0] / shares[1]
    assert ratio.to_numpy() == pytest.approx(2516.6 / 989.4)


def test_hosts_launches_carry_ops_and_are_no_work(folder):
    """As many pieces of work as were recorded, none of them on a line of the host."""
    original, made = open_run(DATA / GRAPHS), open_run(twin(GRAPHS, folder))
    assert len(made.events) == len(original.events)
    assert made.events["line"].astype("str").str.startswith("Stream").all()
    assert int(made.events["self_ns"].sum()) == int(original.events["self_ns"].sum())


@pytest.mark.parametrize(
    ("name", "op", "expected"),
    [
        (
            "nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_NTT",
            "custom-call.1",
            "Cijk_Ailk_Bjlk_BBS_BH_MT128x256x64.kd",
        ),
        ("MemcpyD2D", "copy.3", "__amd_rocclr_copyBuffer.kd"),
        ("MemcpyD2H", "", "CopyDeviceToHost"),
        ("Memset 3", "custom-call.1", "__amd_rocclr_fillBufferAligned.kd"),
        ("loop_add_fusion_3", "loop_add_fusion.3", "loop_add_fusion_3.kd"),
        (
            "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            "all-gather.1",
            "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>) [clone .kd]",
        ),
    ],
)
def test_a_kernel_has_the_name_of_amds_library(name, op, expected):
    assert kernel_name(name, op) == expected


def test_the_bytes_of_a_twin_can_be_read_by_themselves(folder):
    (file,) = (DATA / "sparse-gmm").rglob("*.xplane.pb.gz")
    (made,) = twin("sparse-gmm", folder).rglob("*.xplane.pb")
    assert as_amd(file.read_bytes()) == made.read_bytes()
