"""A training step recorded with and without command buffers: the second is the answer key.

The program is the same, so each execution runs the same kernels on each device. The n-th kernel
of a name in the one is the n-th of that name in the other; matching has no part in that. Small
copies are kernels of the driver in graphs and memory copies outside: they count as one name.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from graph_cases import match_rows

from moeprof.analyzers.classify import classify
from moeprof.columns.table import Table
from moeprof.hlo.program import programs_in
from moeprof.ingest.hlo.programs import METADATA_PLANE, read_programs
from moeprof.ingest.program_frames import hlo_frame
from moeprof.ingest.xspace.open_space import open_space
from moeprof.ingest.xspace.space import ABSENT
from moeprof.tables.trace import LOW_CONFIDENCE

WITH = "traces/maxtext_h100x2_ds_ep2_cf125.xplane.pb.gz"
WITHOUT = "traces/maxtext_h100x2_ds_ep2_cf125_nocmdbuf.xplane.pb.gz"
OTHER = "traces/h100x2_moe_ragged.xplane.pb"
ALIKE = r"^(?:(memcpy32_post|memcpy128|MemcpyD2D)|(Memset)).*"
NUMBERS = ("correlation_id", "program_id", "cuda_graph_id", "cuda_graph_node_id")


def read(file, module: str) -> tuple[pd.DataFrame, Table]:
    """Device work of a module as recorded, and its `HLO_OPS`, a table."""
    space = open_space(file)
    planes = {plane.name: plane for plane in space.head.planes}
    programs = read_programs(space, planes[METADATA_PLANE], [])
    (program_id,) = (key for key, program in programs.items() if program.name == module)
    ops = hlo_frame({program_id: programs[program_id]})
    parts = [device_work(space, planes[f"/device:GPU:{d}"]).assign(device=d) for d in (0, 1)]
    work = pd.concat(parts, ignore_index=True)
    return work[work["module"] == program_id].drop(columns="module"), ops


def device_work(space, plane) -> pd.DataFrame:
    found = space.events(plane, numbers=NUMBERS, texts=("hlo_op",))
    numbers = {key: np.where(v == ABSENT, -1, v) for key, v in found.numbers.items()}
    names = np.array(plane.event_names, object)[found.name]
    lines = np.array([line.name for line in plane.lines], object)[found.line]
    work = pd.DataFrame(
        {
            "line": lines,
            "name": names,
            "kind": [kind(name) for name in names],
            "op": np.array([*found.strings, ""], object)[found.texts["hlo_op"]],
            "start_ns": found.start_ns,
            "duration_ns": found.end_ns - found.start_ns,
            "run_id": 0,
            "correlation_id": numbers["correlation_id"],
            "module": numbers["program_id"],
            "graph_node": numbers["cuda_graph_node_id"],
        }
    )
    return work[np.char.startswith(lines.astype(str), "Stream")]


def kind(name: str) -> str:
    prefixes = {"Memset": "memset", "Memcpy": "copy"}
    return next((found for prefix, found in prefixes.items() if name.startswith(prefix)), "kernel")


def numbered(work: pd.DataFrame) -> pd.DataFrame:
    """`work` with which kernel of its name it is, on its device."""
    work = work.sort_values("start_ns", kind="stable")
    alike = work["name"].str.replace(ALIKE, "copy or memset", regex=True)
    alike = alike.where(alike != "copy or memset", work["name"].str[:4].str.lower())
    return work.assign(alike=alike, place=work.groupby(["device", alike]).cumcount())


@pytest.fixture(scope="module")
def step(recorded):
    """Device work and `HLO_OPS` of the step with command buffers."""
    return read(recorded / WITH, "jit_train_step")


@pytest.fixture(scope="module")
def answered(recorded, step):
    """Work of the step, with the op found, its confidence and the op of the key."""
    work, ops = step
    key, _ = read(recorded / WITHOUT, "jit_train_step")
    found = match_rows(work, ops).rename(columns={"op": "found"})
    places = numbered(work).join(found)
    key = numbered(key)[["device", "alike", "place", "op"]].rename(columns={"op": "key"})
    both = places.merge(key, on=["device", "alike", "place"], how="left", validate="1:1")
    classes = classify(programs_in(ops, set(ops["module"].tolist()))).pandas()
    parts = classes.set_index("op")["component"]
    both["found_part"], both["key_part"] = both["found"].map(parts), both["key"].map(parts)
    return both


def hidden(answered: pd.DataFrame) -> pd.DataFrame:
    return answered[answered["op"].str.startswith("command_buffer_")]


def test_the_key_names_the_op_of_every_kernel_that_is_on_record_in_both(answered):
    """The key itself: where both recorded an op (small copies apart) it is the same one."""
    both = answered[~answered["op"].str.startswith("command_buffer_")]
    both = both[~both["alike"].isin(["memc", "mems"])]
    assert answered["key"].notna().all()
    assert len(both) > 1000
    assert (both["op"] == both["key"]).all()


def test_the_time_hidden_in_command_buffers_gets_the_op_of_the_answer_key(answered):
    for _, work in hidden(answered).groupby("device"):
        assert len(work) == 2094
        is_right = work["found"] == work["key"]
        assert work.loc[is_right, "duration_ns"].sum() >= 0.999 * work["duration_ns"].sum()


def test_no_kernel_gets_the_op_of_another_part_of_the_step_without_a_mark(answered):
    work = hidden(answered)
    is_sure = work["confidence"] >= LOW_CONFIDENCE
    assert is_sure.mean() > 0.99
    assert (work["found_part"] == work["key_part"])[is_sure].all()


def test_full_confidence_is_never_wrong(answered):
    work = hidden(answered)
    certain = work[work["confidence"] == 1.0]
    assert len(certain) > 1000
    assert (certain["found"] == certain["key"]).all()


def test_every_launch_of_a_command_buffer_on_every_device_gets_the_same_ops(answered):
    """Node ids count within their graph in the lower 32 bits, from 0 on each device."""
    work = hidden(answered)
    node = work["graph_node"] & 0xFFFFFFFF
    assert (work.groupby(["op", node])["found"].nunique() == 1).all()


@pytest.mark.parametrize("loss", [0.05, 0.3])
@pytest.mark.parametrize("has_nodes", [True, False])
def test_dropped_kernels_do_not_make_the_others_wrong(step, answered, loss, has_nodes):
    is_kept = np.random.default_rng(0).random(len(answered)) > loss
    is_kept |= ~answered["op"].str.startswith("command_buffer_").to_numpy()
    work = answered[is_kept] if has_nodes else answered[is_kept].assign(graph_node=-1)
    found = match_rows(work, step[1])
    work = hidden(work.assign(again=found["op"].astype(str), sure=found["confidence"]))
    time = work["duration_ns"]
    assert time[work["again"] == work["key"]].sum() >= 0.97 * time.sum()
    is_wrong = (work["sure"] >= LOW_CONFIDENCE) & (work["again"] != work["key"])
    assert time[is_wrong].sum() <= 0.01 * time.sum()


def test_a_first_execution_without_graphs_does_not_mislead_the_second(recorded, step, answered):
    """The runtime may run a command buffer op by op before it makes a graph of it."""
    key, _ = read(recorded / WITHOUT, "jit_train_step")
    alone = key.assign(run_id=-7, start_ns=key["start_ns"] - 10**10, correlation_id=-1)
    found = match_rows(pd.concat([alone, answered], ignore_index=True), step[1])
    work = answered.assign(again=found["op"].astype(str).to_numpy()[len(alone) :])
    work = hidden(work)
    time = work["duration_ns"]
    assert time[work["again"] == work["key"]].sum() >= 0.99 * time.sum()


def test_a_program_of_another_kind_is_matched_whole(recorded):
    """Grouped products, sorts and one-shot exchanges: no answer key, but nothing stays open."""
    work, ops = read(recorded / OTHER, "jit_step")
    found = match_rows(work, ops)
    is_open = ~work["op"].isin(ops["op"])
    assert is_open.sum() == 4974
    assert (found.loc[is_open, "op"] != "").all()
    is_low = found.loc[is_open, "confidence"] < LOW_CONFIDENCE
    time = work.loc[is_open, "duration_ns"]
    assert time[is_low].sum() < 0.001 * time.sum()
