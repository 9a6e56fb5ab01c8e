"""The compiler's plan beside the closed form."""

import dataclasses

import numpy as np
import pytest
from builders.memory import GIB, cell, document

from moeprof.analyzers.heap.at_peak import AT_PEAK
from moeprof.projector.compiled.result import CompiledPlan
from moeprof.reports.memory.document import compiled_info
from moeprof.reports.memory.page import render
from moeprof.reports.memory.terminal import drawn
from moeprof.specs.hardware import load_hardware
from moeprof.tables.compiled_memory import CompiledMemory


def plan(memory: CompiledMemory) -> CompiledPlan:
    """Weights of 20 GiB, and an arena with 24 GiB of rows in it."""
    buffers = AT_PEAK.frame(
        [
            {"content": "weights", "component": "", "size_bytes": 20 * GIB},
            {"content": "temporaries", "component": "grouped_gemm", "size_bytes": 16 * GIB},
            {"content": "temporaries", "component": "grouped_gemm", "size_bytes": 8 * GIB},
        ]
    )
    return CompiledPlan(
        hardware=load_hardware("h100_sxm"),
        devices=8,
        memory=memory,
        outside={},
        buffers=buffers,
        timeline=np.zeros(0, dtype=np.int64),
        peak=-1,
        peak_op="dot.1",
        compiler="jaxlib 0.10.2",
        compile_s=19.4,
        notes=("a note",),
    )


def test_both_stand_side_by_side_with_the_difference():
    """Closed form 20 + 30 GiB; compiled 20 + 24 + 1 of results that reuse no argument."""
    memory = CompiledMemory(20 * GIB, 21 * GIB, 20 * GIB, 24 * GIB)
    row = cell("sparse-gmm", 1, args=20 * GIB, temp=30 * GIB)
    row["compiled"] = compiled_info(plan(memory))
    assert row["compiled"]["temp_bytes"] == 25 * GIB
    lines = drawn(document([row], {"sparse-gmm": 1})).plain.splitlines()
    assert "Compiled by jaxlib 0.10.2, 19 s" in lines
    assert [
        line.split() for line in lines if line.startswith((" args ", " temp ", " together "))
    ] == [
        ["args", "20.00", "GiB", "20.00", "GiB", "0.0", "%"],
        ["temp", "30.00", "GiB", "25.00", "GiB", "+20.0", "%"],
        ["together", "50.00", "GiB", "45.00", "GiB", "+11.1", "%"],
    ]
    assert any(line.split() == ["temporaries,", "grouped_gemm", "24.00", "GiB"] for line in lines)
    assert " - a note" in lines


@pytest.mark.parametrize(
    ("library", "is_known", "ends", "said"),
    [
        # 24 GiB of arena and 1 of results; libraries take 6 more or 4 less.
        (30, True, (25, 31), "takes 25.00 GiB to 31.00 GiB, by the kernels that a run chooses: 45"),
        (20, True, (21, 25), "takes 21.00 GiB to 25.00 GiB, by the kernels that a run chooses: 41"),
        (None, True, (25, 25), ""),
        (None, False, (25, 25), "takes 25.00 GiB or more, by the kernels that a run chooses."),
    ],
)
def test_both_ends_of_the_arena_are_said(library, is_known, ends, said):
    memory = CompiledMemory(20 * GIB, 21 * GIB, 20 * GIB, 24 * GIB)
    found = dataclasses.replace(
        plan(memory),
        library_temp_bytes=None if library is None else library * GIB,
        is_range_known=is_known,
    )
    row = cell("sparse-gmm", 1, args=20 * GIB, temp=30 * GIB)
    row["compiled"] = compiled_info(found)
    assert row["compiled"]["temp_range_bytes"] == [end * GIB for end in ends]
    assert row["compiled"]["is_temp_range_known"] is is_known
    text = " ".join(drawn(document([row], {"sparse-gmm": 1})).plain.split())
    assert ("The arena takes" in text) == bool(said)
    assert said in text


def test_what_the_backend_does_not_report_is_not_zero():
    row = cell("sparse-gmm", 1, args=20 * GIB, temp=30 * GIB)
    row["compiled"] = compiled_info(plan(CompiledMemory()))
    assert (row["compiled"]["args_bytes"], row["compiled"]["temp_bytes"]) == (None, None)
    assert row["compiled"]["temp_range_bytes"] is None
    assert "not known" in drawn(document([row], {"sparse-gmm": 1})).plain


def test_the_page_has_the_plan_too():
    row = cell("sparse-gmm", 1, args=20 * GIB, temp=30 * GIB)
    memory = CompiledMemory(20 * GIB, 21 * GIB, 20 * GIB, 24 * GIB)
    row["compiled"] = compiled_info(plan(memory))
    page = render(document([row], {"sparse-gmm": 1}))
    assert "Compiled by jaxlib 0.10.2, 19 s." in page
    assert "temporaries, grouped_gemm" in page
