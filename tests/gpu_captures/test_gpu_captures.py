"""Captures of every strategy on two GPUs: our reading beside what their script knew of its steps.

``tests/data/gpu`` has one run folder per capture, made and packed by `benchmarks/gpu/captures.py`:
three layers, of which the last two have 8 experts, 2 per token; 2 sequences of 512 tokens on each
of 2 devices; expert parallelism over both; two recorded steps.
"""

from __future__ import annotations

import functools
import gzip
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "ingest"))

from descriptors import message_class

from moeprof.analyzers.attribution import programs_of
from moeprof.analyzers.classify.op_kinds import exchange_of, is_grouped_gemm
from moeprof.analyzers.costs.table import runs_of
from moeprof.analyzers.heap.at_peak import step_module
from moeprof.analyzers.questions.breakdown import breakdown
from moeprof.analyzers.questions.dispatch_combine import dispatch_combine
from moeprof.analyzers.questions.grouped_gemm import grouped_gemm
from moeprof.analyzers.questions.stragglers import stragglers
from moeprof.analyzers.questions.timeline import timeline
from moeprof.ingest import open_run
from moeprof.tables.trace import Trace

DATA = Path(__file__).parents[1] / "data" / "gpu"
GRAPHS = "sparse-gmm-deepep-graphs"
DEEPEP = ["sparse-gmm-deepep", GRAPHS]
OURS = ["sparse-gmm", *DEEPEP]
NAMES = ["dense-cf1.25", "sparse-ragged-dot", *OURS]
PLACES = ("work", "tmp", "home", "root")
DEVICES, STEPS, MOE_LAYERS, TOKENS, TOP_K, HIDDEN, FFN = 2, 2, 2, 1024, 2, 512, 512
WORST_ROWS = DEVICES * TOKENS * TOP_K
# Of one MoE layer and step with full recomputation. DeepEP's routing weights multiply before the
# down projection, whose result the backward pass then does without.
_WITH_DEEPEP = {
    "moeprof_grouped_gemm": 3 + 2 + 3,
    "moeprof_grouped_gemm_variable_k": 3,
    "moeprof_moe_dispatch_inproc": 2,
    "moeprof_moe_cached_dispatch_inproc": 1,
    "moeprof_moe_combine_inproc": 2,
}
CALLS = {
    "sparse-gmm": {"moeprof_grouped_gemm": 3 + 3 + 3, "moeprof_grouped_gemm_variable_k": 3},
    "sparse-gmm-deepep": _WITH_DEEPEP,
    GRAPHS: _WITH_DEEPEP,
}


@functools.cache
def opened(name: str) -> Trace:
    return open_run(DATA / name)


@functools.cache
def answers(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DATA / name / "answers.json").read_text("utf-8"))
    return found


@functools.cache
def decoded(name: str) -> Any:
    """The profile by protobuf's own library."""
    (file,) = (DATA / name).rglob("*.xplane.pb.gz")
    space = message_class("tensorflow.profiler.XSpace")()
    space.ParseFromString(gzip.decompress(file.read_bytes()))
    return space


def work_by_op(name: str) -> Counter[tuple[int, str]]:
    """Kernels, copies and memory sets per (device, op that the profile names; empty for none)."""
    found: Counter[tuple[int, str]] = Counter()
    for plane in decoded(name).planes:
        if not plane.name.startswith("/device:GPU:"):
            continue
        stats = {key: value.name for key, value in plane.stat_metadata.items()}
        for line in plane.lines:
            for event in line.events if line.name.startswith("Stream") else ():
                named = [s for s in event.stats if stats[s.metadata_id] == "hlo_op"]
                texts = [stats[s.ref_value] if s.ref_value else s.str_value for s in named]
                found[(int(plane.name.rpartition(":")[2]), texts[0] if texts else "")] += 1
    return found


def recorded_steps(name: str) -> list[dict[str, Any]]:
    """The script's own records of the steps that the profile holds."""
    numbers = set(opened(name).steps.loc[lambda steps: steps["used"], "step"])
    return [step for step in answers(name)["steps"] if step["step"] in numbers]


def test_every_strategy_is_there() -> None:
    assert sorted(NAMES) == sorted(path.name for path in DATA.iterdir())


@pytest.mark.parametrize("name", NAMES)
def test_files_name_no_place_that_they_were_made_at(name: str) -> None:
    files = [file for file in (DATA / name).rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) < 3_000_000
    for file in files:
        raw = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
        assert not [place for place in PLACES if f"/{place}/".encode() in raw]


@pytest.mark.parametrize("name", NAMES)
def test_the_profile_is_whole_and_believed(name: str) -> None:
    trace = opened(name)
    assert (trace.meta.platform, trace.meta.devices) == ("gpu", DEVICES)
    assert int(trace.steps["used"].sum()) == STEPS
    assert [check.check for check in trace.trust if check.verdict == "fail"] == []


@pytest.mark.parametrize("name", [name for name in NAMES if name != GRAPHS])
def test_each_op_has_the_work_that_the_profile_says(name: str) -> None:
    events = opened(name).events
    events = events[events["kind"].ne("sync")]
    pairs = zip(events["device"], events["op"].astype("str"), strict=True)
    assert Counter((int(device), op) for device, op in pairs) == work_by_op(name)


@pytest.mark.parametrize("name", NAMES)
def test_sizes_of_the_program_are_the_compilers(name: str) -> None:
    trace = opened(name)
    module = trace.modules.set_index("module").loc[step_module(trace)]
    known = answers(name)["memory_analysis"]
    assert {key: int(module[key]) for key in known} == known


@pytest.mark.parametrize("name", NAMES)
def test_allocators_held_at_least_the_program(name: str) -> None:
    known = answers(name)
    sizes = known["memory_analysis"]
    least = sizes["argument_bytes"] + sizes["temp_bytes"]
    assert len(known["allocator_peak_bytes"]) == DEVICES
    assert all(peak >= least for peak in known["allocator_peak_bytes"])


@pytest.mark.parametrize("name", NAMES)
def test_routing_is_what_the_script_saw(name: str) -> None:
    trace = opened(name)
    for known in answers(name)["steps"]:
        routing = trace.routing[trace.routing["step"] == known["step"]]
        table = routing.pivot(index="layer", columns="expert", values="tokens")
        assert table.index.tolist() == [1, 2]
        assert table.to_numpy().tolist() == known["tokens_per_expert"]
        received = trace.received[trace.received["step"] == known["step"]]
        rows = received.pivot(index="layer", columns="rank", values="rows")
        assert rows.to_numpy().tolist() == [groups[0] for groups in known["received_rows"]]


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("sparse")])
def test_no_token_is_dropped(name: str) -> None:
    for step in answers(name)["steps"]:
        for layer in step["tokens_per_expert"]:
            assert sum(layer) == DEVICES * TOKENS * TOP_K
        if name not in DEEPEP:
            for groups in step["received_rows"]:
                assert sum(groups[0]) == DEVICES * TOKENS * TOP_K


@pytest.mark.parametrize("name", NAMES)
def test_losses_are_those_of_learning(name: str) -> None:
    losses = [step["loss"] for step in answers(name)["steps"]]
    assert losses[0] == pytest.approx(6.93, abs=0.7)  # ln 1024, before anything is learnt
    assert losses[-1] < losses[0]


def test_dropless_strategies_compute_the_same() -> None:
    """Before the first update: bfloat16 sums run in another order. Dropped tokens change more."""
    first = {name: answers(name)["steps"][0]["loss"] for name in NAMES}
    dropless = [loss for name, loss in first.items() if name.startswith("sparse")]
    assert max(dropless) - min(dropless) < 0.002
    assert abs(first["dense-cf1.25"] - dropless[0]) > 0.05


@pytest.mark.parametrize("name", OURS)
def test_calls_of_our_kernels(name: str) -> None:
    """Each of a layer's calls once per layer, step and device, whatever fusion it stands in."""
    trace = opened(name)
    made: Counter[str] = Counter()
    for row in runs_of(trace).pandas().itertuples():
        program = programs_of(trace)[int(str(row.module))]
        for member in program.interior(program.ops[str(row.op)]):
            if is_grouped_gemm(member.target) or exchange_of(member.target):
                made[member.target] += int(str(row.runs))
    each = MOE_LAYERS * STEPS * DEVICES
    assert made == {target: calls * each for target, calls in CALLS[name].items()}


@pytest.mark.parametrize("name", OURS)
def test_products_and_the_rows_that_they_multiplied(name: str) -> None:
    """All 4096 pairs of a layer, half of them on either of two ranks; room for all on each."""
    table = grouped_gemm(opened(name)).table
    table = table[table["form"] == "custom call"]
    calls = sum(n for target, n in CALLS[name].items() if "grouped" in target)
    assert table["calls"].sum() == calls * MOE_LAYERS
    assert set(table["rows"]) == {WORST_ROWS}
    assert table["used_rows"].tolist() == pytest.approx([WORST_ROWS / 2] * len(table))
    assert table["worst_flops"].sum() == calls * MOE_LAYERS * 2 * WORST_ROWS * HIDDEN * FFN
    assert (table["tflop_per_s"] > 0).all()


@pytest.mark.parametrize("name", DEEPEP)
def test_exchanges_carry_the_rows_that_were_received(name: str) -> None:
    counted = [
        rows
        for step in recorded_steps(name)
        for groups in step["received_rows"]
        for rows in groups[0]
    ]
    table = dispatch_combine(opened(name)).table
    mine = table[table["form"] == "custom call"]
    assert mine["calls"].sum() == 5 * MOE_LAYERS
    assert set(mine["group_size"]) == {DEVICES}
    mean = sum(counted) / len(counted)
    assert mine["used_bytes"].tolist() == pytest.approx([mean * HIDDEN * 2] * len(mine))
    assert (mine["bus_gb_per_s"] > 0).all()
    assert mine["wait_ns"].ge(0).all()


@pytest.mark.parametrize("name", NAMES)
def test_time_is_explained(name: str) -> None:
    parts = breakdown(opened(name)).table.groupby("component")["share"].sum()
    assert parts.get("unattributed", 0.0) < 0.05
    assert parts["grouped_gemm"] > 0
    assert {"attention", "router", "optimizer"} <= set(parts.index)


@pytest.mark.parametrize("name", NAMES)
def test_each_moment_of_a_step_is_of_one_kind(name: str) -> None:
    trace = opened(name)
    table = timeline(trace).table
    kinds = ["compute_ns", "exposed_communication_ns", "exposed_copy_ns", "idle_ns"]
    assert set(kinds) <= set(table.columns)
    assert (table[kinds].sum(axis=1) == table["duration_ns"]).all()
    assert set(stragglers(trace).table["rank"]) == {0, 1}
