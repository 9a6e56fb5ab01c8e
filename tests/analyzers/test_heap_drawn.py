"""Memory over the points of a program, by hand and on real captures."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from builders.work import hlo, kernel, traced

from moeprof.analyzers.drawings.heap import MOST_STRETCHES, heap
from moeprof.analyzers.heap.device import pool_bytes
from moeprof.analyzers.heap.places import fullest_points
from moeprof.analyzers.questions.memory import memory
from moeprof.ingest import open_run
from moeprof.tables.host_side import ALLOCATIONS
from moeprof.tables.trace import BUFFERS, MODULES

DATA = Path(__file__).parents[1] / "data"
FORWARD, BACKWARD = "jit(step)/jvp(mlp)/add", "jit(step)/transpose(jvp(mlp))/add"
OF_BUFFER = {"module": 7, "shape_index": "", "allocation": 1, "color": 0, "is_at_peak": False}


def temporary(op, size, offset, life):
    place = {"offset_bytes": offset, "live_from": life[0], "live_to": life[1], "trace": 0}
    return {**OF_BUFFER, **place, "op": op, "size_bytes": size, "buffer": 1, "kind": "temp"}


def argument(op, size, allocation):
    nowhere = {"offset_bytes": 0, "live_from": -1, "live_to": -1, "trace": -1}
    known = {"op": op, "size_bytes": size, "buffer": 1, "kind": "parameter"}
    return {**OF_BUFFER, **nowhere, **known, "allocation": allocation, "is_at_peak": True}


def planned(buffers, temp_bytes):
    """Weights of 1000 bytes; an activation that is kept, and the backward pass that reads it."""
    ops = [
        hlo("w", "parameter", shape="bf16[20,25]", op_name="params['w']", parameter=0),
        hlo("act", "add", shape="f32[50]", op_name=FORWARD),
        hlo("tmp", "add", shape="f32[25]", op_name=FORWARD),
        hlo("back", "add", shape="f32[75]", op_name=BACKWARD),
        hlo("again", "add", shape="f32[75]", op_name=BACKWARD),
    ]
    trace = traced([kernel("back", 0, 100)], ops)
    stated = {name: 0 for name in MODULES.names} | {
        "module": 7, "name": "jit_step", "argument_bytes": 1000, "temp_bytes": temp_bytes,
    }  # fmt: skip
    return dataclasses.replace(
        trace,
        modules=MODULES.frame([stated]),
        buffers=BUFFERS.frame([argument("w", 1000, 2), *buffers]),
        steps=trace.steps.assign(module=7),
    )


STEP = planned(
    [
        temporary("act", 200, 0, (0, 40)),
        temporary("tmp", 100, 200, (1, 3)),
        temporary("back", 300, 200, (30, 50)),
        temporary("again", 300, 200, (35, 38)),  # where back is: an update in place
    ],
    temp_bytes=512,
)


def at(trace, point):
    """Bytes by content and component at a point."""
    table = heap(trace).table
    mine = table[table["point"] == point]
    keys = zip(mine["content"], mine["component"], strict=True)
    return dict(zip(keys, mine["size_bytes"], strict=True))


def test_layers_are_what_lives_at_each_point():
    stays = {("weights", ""): 1000, ("gaps and rounding", ""): 12}
    work, kept = ("working set", "dense_mlp"), ("saved activations", "dense_mlp")
    assert at(STEP, 1) == {**stays, kept: 200, work: 100}  # act is read at 40, tmp never again
    assert at(STEP, 3) == {**stays, kept: 200}
    assert at(STEP, 36) == {**stays, kept: 200, work: 300}  # two in one place count once
    assert at(STEP, 45) == {**stays, work: 300}
    assert at(STEP, 50) == stays


def test_an_op_that_the_compiler_moved_ahead_is_no_backward_pass():
    """Its gradient is there from 2 on; what the forward pass frees at 20 is not kept for it."""
    moved = planned(
        [
            temporary("act", 200, 0, (1, 40)),
            temporary("back", 300, 200, (2, 50)),
            temporary("tmp", 100, 500, (3, 20)),
            temporary("again", 300, 600, (35, 38)),
        ],
        temp_bytes=900,
    )
    there = at(moved, 3)
    assert there["saved activations", "dense_mlp"] == 200
    assert there["working set", "dense_mlp"] == 400


def test_the_largest_stretch_is_the_peak_of_the_finding():
    found = heap(STEP)
    told = {metric.metric: metric.value for metric in found.headline}
    sums = found.table.groupby("point")["size_bytes"].sum()
    assert told["program_peak"] == sums.max() == 1512 == memory(STEP).headline[0].value
    assert (told["peak_point"], told["last_point"], told["peak_op"]) == (30, 50, "back")
    assert sums.idxmax() == told["peak_point"]


def test_each_point_names_the_op_that_wrote_last():
    table = heap(STEP).table.drop_duplicates("point").set_index("point")
    assert table["op"].loc[[0, 2, 29, 30, 36]].tolist() == ["act", "tmp", "tmp", "back", "again"]
    assert (table["running"].loc[30], table["phase"].loc[30]) == ("dense_mlp", "backward")


def test_stretches_keep_the_fullest_point():
    """Ten points as four stretches: 0-1, 2-4, 5-6, 7-9."""
    import numpy as np

    firsts, points = fullest_points(np.array([1, 5, 2, 9, 9, 0, 0, 3, 4, 1]), 4)
    assert firsts.tolist() == [0, 2, 5, 7]
    assert points.tolist() == [1, 3, 5, 8]


def test_the_pool_is_the_least_of_all_devices():
    row = {name: -1 for name in ALLOCATIONS.names} | {
        "host": "a", "allocator": "GPU_0_bfc", "is_free": False, "op": "", "region_type": "",
        "shape": "",
    }  # fmt: skip
    rows = [
        row | {"device": 0, "allocated_bytes": 30, "available_bytes": 70},
        row | {"device": 1, "allocated_bytes": 10, "available_bytes": 80},
        row | {"device": -1, "allocated_bytes": 1, "available_bytes": 1},
    ]
    assert pool_bytes(dataclasses.replace(STEP, allocations=ALLOCATIONS.frame(rows))) == 90
    assert pool_bytes(STEP) is None


@pytest.mark.parametrize(
    ("trace", "why"),
    [
        (dataclasses.replace(STEP, buffers=BUFFERS.frame()), "keeps no account of the buffers"),
        (planned([], temp_bytes=0), "no temporary buffer"),
        (planned([], temp_bytes=512), "came from a compilation cache"),
        (traced([kernel("k", 0, 9)]), "no program of a step is known"),
    ],
    ids=["no plan", "no lives", "from a cache", "no program"],
)
def test_what_is_missing_is_one_sentence(trace, why):
    found = heap(trace)
    assert found.table.empty
    (note,) = found.notes
    assert why in note


@pytest.mark.parametrize(
    "run",
    ["gpu/dense-cf1.25", "gpu/sparse-gmm", "maxtext/deepseek3_tiny_fsdp8_ragged_dot.xplane.pb.gz"],
)
def test_a_capture_peaks_where_its_finding_does(run):
    trace = open_run(DATA / run)
    found, finding = heap(trace), memory(trace)
    told = {metric.metric: metric.value for metric in found.headline}
    sums = found.table.groupby("point")["size_bytes"].sum()
    assert len(sums) <= MOST_STRETCHES
    assert sums.max() == finding.headline[0].value == told["program_peak"]
    peak = found.table[found.table["point"] == told["peak_point"]]
    if "heaps of other memory spaces" not in set(peak["content"]):
        by_content = finding.table.groupby("content")["size_bytes"].sum()
        assert peak.groupby("content")["size_bytes"].sum().to_dict() == by_content.to_dict()
    assert (found.table["size_bytes"] > 0).all()
