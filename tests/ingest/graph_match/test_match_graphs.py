"""Kernels of a graph get the op that the schedule gives them, and as sure as that is."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from graph_cases import (
    GEMM_KERNEL,
    GRAPH,
    fusion,
    gemm,
    launch,
    match_rows,
    matched,
    op,
    ops_of,
    program,
    recorded,
)

from moeprof.ingest.placing.graph_match import match
from moeprof.ingest.placing.graph_match.solve import ENCLOSED, NAMED, OPEN, UNEVEN
from moeprof.tables.trace import LOW_CONFIDENCE

CHAIN = program([fusion("add.1"), gemm("custom-call.1"), fusion("mul.2"), gemm("custom-call.2")])


def test_a_name_that_is_one_instructions_alone_is_certain():
    (first, second) = matched(CHAIN, launch("add_1", "mul_2")).itertuples()
    assert (first.op, first.confidence, first.evidence) == ("add.1", NAMED, "graph")
    assert (second.op, second.confidence) == ("mul.2", NAMED)


def test_a_library_kernel_between_two_named_ones_is_the_product_between_them():
    found = matched(CHAIN, launch("add_1", "Memset 3", GEMM_KERNEL, "mul_2", GEMM_KERNEL))
    assert found["op"].tolist() == [
        "add.1",
        "custom-call.1",  # clears its workspace first
        "custom-call.1",
        "mul.2",
        "custom-call.2",
    ]
    assert found["confidence"].tolist() == [NAMED, ENCLOSED, ENCLOSED, NAMED, OPEN]


@pytest.mark.parametrize(
    ("memset", "product"),
    [
        ("Memset 0", "Cijk_Ailk_Bljk_BBS_BH_MT128x128x32"),
        ("__amd_rocclr_fillBufferAligned", "Cijk_Ailk_Bljk_BBS_BH_MT128x128x32"),
        ("__amd_rocclr_fillBufferAligned.kd", "Custom_Cijk_Alik_Bljk_BBS_BH_MT256x256x64.kd"),
        ("Memset 3", "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16>"),
        ("Memset 3", "a_name_that_nobody_knows"),
    ],
)
def test_libraries_of_any_vendor_are_told_by_what_they_compute(memset, product):
    assert ops_of(CHAIN, launch("add_1", memset, product, "mul_2")) == [
        "add.1",
        "custom-call.1",
        "custom-call.1",
        "mul.2",
    ]


def test_kernels_that_amds_profiler_names_by_their_descriptor_are_known_by_name():
    found = matched(CHAIN, launch("add_1.kd", "Cijk_Ailk_Bljk_BBS_BH_MT64x64x64.kd", "mul_2.kd"))
    assert found["op"].tolist() == ["add.1", "custom-call.1", "mul.2"]
    assert found["confidence"].tolist() == [NAMED, ENCLOSED, NAMED]


def test_fusions_that_share_a_kernel_are_told_apart_by_order():
    same = program([fusion("a.1", "add"), gemm("custom-call.1"), fusion("a.2", "add"), fusion("z")])
    found = matched(same, launch("a_1", GEMM_KERNEL, "a_1", "z"))
    assert found["op"].tolist() == ["a.1", "custom-call.1", "a.2", "z"]
    assert found["confidence"].iloc[0] < NAMED


def test_a_fusion_whose_own_kernel_ran_does_not_share_anothers():
    """Their bodies look alike, but the compiler made two kernels: each name is one op's."""
    same = program([fusion("a.1", "add"), fusion("a.2", "add")])
    found = matched(same, launch("a_2", "a_1"))
    assert found["op"].tolist() == ["a.2", "a.1"]
    assert found["confidence"].tolist() == [NAMED, NAMED]


def test_the_own_name_of_a_shared_kernel_does_not_make_it_sure():
    """It may be the second pair too: the same kernels, named after the first."""
    pairs = [fusion("a.1", "add"), fusion("e.1", "exp"), fusion("a.2", "add"), fusion("e.2", "exp")]
    found = matched(program(pairs), launch("a_1", "e_1"))
    assert found["op"].tolist() == ["a.1", "e.1"]
    assert found["confidence"].tolist() == [UNEVEN, UNEVEN]


def test_fewer_kernels_than_instructions_is_a_guess():
    three = program([fusion("a.1"), gemm("g.1"), gemm("g.2"), gemm("g.3"), fusion("b.1")])
    found = matched(three, launch("a_1", GEMM_KERNEL, GEMM_KERNEL, "b_1"))
    assert found["confidence"].tolist() == [NAMED, UNEVEN, UNEVEN, NAMED]
    assert UNEVEN < LOW_CONFIDENCE
    assert set(found["op"].iloc[1:3]) <= {"g.1", "g.2", "g.3"}


def test_an_extra_memset_does_not_move_what_has_a_name_of_its_own():
    found = matched(
        CHAIN, launch("Memset 0", "add_1", "Memset 0", "Memset 0", GEMM_KERNEL, "mul_2")
    )
    assert found["op"].tolist()[1:] == ["add.1", *["custom-call.1"] * 3, "mul.2"]
    assert found["op"].iloc[0] == ""  # nothing that could clear memory comes before


def test_a_kernel_that_fits_nowhere_stays_without_an_op():
    found = matched(CHAIN, launch("add_1", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", GEMM_KERNEL))
    assert found["op"].tolist() == ["add.1", "", "custom-call.1"]
    assert found["evidence"].tolist() == ["graph", "", "graph"]
    assert found["confidence"].iloc[1] == 0.0


@pytest.mark.parametrize("name", ["CUDA Graph", "hipGraphLaunch", "MemcpyH2D", "MemcpyDtoH"])
def test_a_graph_recorded_as_one_piece_and_host_copies_belong_to_no_instruction(name):
    assert ops_of(program([op("custom-call.1", "custom-call", target="f")]), launch(name)) == [""]


def test_a_fused_sort_runs_the_copies_and_kernels_named_after_the_instruction_inside():
    sort = {**fusion("fusion.4", "sort"), "details": "kind=kInput"}
    found = ops_of(
        program([fusion("a.1"), sort, fusion("b.1")]),
        launch("a_1", "memcpy32_post", "in_fusion_4", "in_fusion_4__1", "b_1"),
    )
    assert found == ["a.1", "fusion.4", "fusion.4", "fusion.4", "b.1"]


def test_copies_that_a_slice_became_are_placed_in_order():
    moves = program([fusion("a.1"), fusion("s.1", "slice"), op("copy.3", "copy"), fusion("b.1")])
    work = launch("a_1", "MemcpyD2D", "memcpy128", "b_1")
    work.loc[1, "kind"] = "copy"
    assert ops_of(moves, work) == ["a.1", "s.1", "copy.3", "b.1"]


def test_a_loop_of_three_trips_launches_its_graph_three_times_and_each_is_the_same():
    loop = program(
        [fusion("first.1"), op("while.1", "while", "body", "condition"), fusion("last.1")],
        condition=[fusion("compare.1")],
        body=[fusion("a.1"), gemm("g.1"), gemm("g.2"), fusion("b.1")],
    )
    trips = [
        launch("a_1", GEMM_KERNEL, GEMM_KERNEL, "b_1", correlation=trip, start=1000 * trip)
        for trip in (1, 2, 3)
    ]
    work = [recorded("first_1", "first.1", 10), *trips, recorded("last_1", "last.1", 9000)]
    assert ops_of(loop, *work) == ["", *["a.1", "g.1", "g.2", "b.1"] * 3, ""]


def test_a_loop_inside_one_graph_runs_its_body_again_and_again():
    loop = program(
        [op("while.1", "while", "body", "condition")],
        condition=[],
        body=[fusion("a.1"), gemm("g.1"), fusion("b.1"), gemm("g.2")],
    )
    trip = ("a_1", GEMM_KERNEL, "b_1", GEMM_KERNEL)
    found = matched(loop, launch(*trip * 3))
    assert found["op"].tolist() == ["a.1", "g.1", "b.1", "g.2"] * 3
    assert found["confidence"].iloc[3] == ENCLOSED  # from b.1 over the loop's end to a.1
    assert found["confidence"].iloc[-1] == OPEN


def test_node_ids_do_not_give_the_order_starts_do():
    """A library's kernels get their node ids when they are captured, after all others."""
    work = launch("add_1", GEMM_KERNEL, "mul_2", GEMM_KERNEL, nodes=[0, 8, 1, 9])
    assert ops_of(CHAIN, work) == ["add.1", "custom-call.1", "mul.2", "custom-call.2"]


def test_launches_on_two_devices_get_one_answer_though_one_started_out_of_order():
    names, nodes = ("add_1", GEMM_KERNEL, "mul_2", "Memset 0"), [0, 2, 1, 3]
    parts = [launch(*names, nodes=nodes, device=d, correlation=d, start=1000) for d in (0, 1, 2)]
    parts[2].loc[:, "start_ns"] = [1000, 1020, 1010, 1030]  # the product seems to come last
    found = ops_of(CHAIN, *parts)
    assert found[:4] == found[4:8] == found[8:]
    assert found[:3] == ["add.1", "custom-call.1", "mul.2"]


@pytest.mark.parametrize("nodes", [[3, 4, 5, 6], None])
def test_a_launch_cut_by_the_capture_is_matched_as_its_part_of_a_whole_one(nodes):
    same = program([gemm("g.1"), fusion("a.1"), gemm("g.2"), gemm("g.3")])
    whole = launch(GEMM_KERNEL, "a_1", GEMM_KERNEL, GEMM_KERNEL, nodes=nodes, start=9000)
    cut = launch("a_1", GEMM_KERNEL, nodes=nodes and nodes[1:3], correlation=6)
    assert ops_of(same, cut, whole) == ["a.1", "g.2", "g.1", "a.1", "g.2", "g.3"]


def test_known_ops_beside_a_launch_bound_what_it_can_be():
    """Nothing in the graph has a name; between its neighbours stands one product."""
    bounded = program([gemm("g.1"), fusion("a.1"), gemm("g.2"), fusion("b.1"), gemm("g.3")])
    work = [recorded("a_1", "a.1", 10), launch(GEMM_KERNEL), recorded("b_1", "b.1", 9000)]
    found = matched(bounded, *work)
    assert found["op"].tolist() == ["", "g.2", ""]
    assert found["confidence"].iloc[1] == ENCLOSED


def test_neighbours_of_another_execution_bound_nothing():
    bounded = program([gemm("g.1"), fusion("a.1"), gemm("g.2"), fusion("b.1"), gemm("g.3")])
    work = [
        recorded("a_1", "a.1", 10, run=2),
        launch(GEMM_KERNEL, run=1),
        recorded("b_1", "b.1", 9000, run=3),
    ]
    assert matched(bounded, *work)["confidence"].iloc[1] == UNEVEN


def test_a_launch_matched_for_sure_bounds_the_one_beside_it():
    bounded = program([gemm("g.1"), fusion("a.1"), gemm("g.2"), fusion("b.1"), gemm("g.3")])
    work = [
        launch("a_1", op="command_buffer_1", correlation=1),
        launch(GEMM_KERNEL, op="command_buffer_2", correlation=2, start=2000),
        launch("b_1", op="command_buffer_3", correlation=3, start=3000),
    ]
    found = matched(bounded, *work)
    assert found["op"].tolist() == ["a.1", "g.2", "b.1"]
    assert found["confidence"].tolist() == [NAMED, ENCLOSED, NAMED]


def test_what_runs_outside_graphs_is_not_sought_in_one():
    """Both products could be it, but one is on record by itself."""
    work = [recorded(GEMM_KERNEL, "custom-call.1", 9000, run=2), launch(GEMM_KERNEL, run=1)]
    assert ops_of(CHAIN, *work) == ["", "custom-call.2"]


def test_async_ops_and_calls_stand_in_the_place_of_their_callers():
    wrapped = program(
        [op("s.1", "async-start", "wrapped"), op("call.1", "call", "called"), fusion("b.1")],
        wrapped=[op("all-gather.1", "all-gather")],
        called=[gemm("g.1")],
    )
    names = ("ncclDevKernel_AllGather_RING_LL", GEMM_KERNEL, "b_1")
    assert ops_of(wrapped, launch(*names)) == ["all-gather.1", "g.1", "b.1"]


def test_without_a_schedule_order_is_a_guess_and_names_are_not():
    unscheduled = CHAIN.assign(schedule=-1)
    for instructions in (unscheduled, CHAIN.drop(columns="schedule")):
        found = matched(instructions, launch("add_1", GEMM_KERNEL, "mul_2"))
        assert found["confidence"].iloc[1] < LOW_CONFIDENCE
        assert found["confidence"].tolist()[::2] == [NAMED, NAMED]


def one_rocm_launch() -> pd.DataFrame:
    """40 kernels under one correlation id, without node ids; two of them name their op."""
    names = [f"k_{place}" for place in range(38)]
    work = launch("add_1", *names[:19], "mul_2", *names[19:], op="", correlation=77)
    work.loc[[0, 20], "op"] = ["add.1", "mul.2"]
    return work


def test_without_a_program_no_kernel_of_a_launch_gets_the_op_of_another():
    found = match_rows(one_rocm_launch(), CHAIN.iloc[:0])
    assert len(found) == 40
    assert (found["op"] == "").all()
    assert (found["confidence"] == 0.0).all()


def test_two_recorded_ops_of_a_launch_anchor_the_38_others():
    middle = [fusion(f"k.{place}") for place in range(38)]
    instructions = program([fusion("add.1"), *middle[:19], fusion("mul.2"), *middle[19:]])
    found = ops_of(instructions, one_rocm_launch())
    assert found[0] == found[20] == ""  # they have theirs
    assert found[1:20] == [f"k.{place}" for place in range(19)]
    assert found[21:] == [f"k.{place}" for place in range(19, 38)]


def test_work_on_record_of_the_module_gets_no_answer():
    found = matched(CHAIN, recorded("add_1", "add.1", 10), recorded("x", "mul.2", 20))
    assert found["evidence"].tolist() == ["", ""]


def test_launches_without_correlation_ids_are_told_apart_by_their_nodes():
    same = program([gemm("g.1"), fusion("a.1"), gemm("g.2")])
    names, nodes = (GEMM_KERNEL, "a_1", GEMM_KERNEL), [1, 0, 2]
    parts = [launch(*names, nodes=nodes, correlation=-1, start=s) for s in (1000, 2000)]
    assert ops_of(same, *parts) == ["g.1", "a.1", "g.2"] * 2


def test_order_of_rows_and_categories_do_not_matter():
    work = launch("add_1", GEMM_KERNEL, "mul_2", GEMM_KERNEL)
    mixed = work.iloc[[1, 3, 2, 0]].astype(
        dict.fromkeys(("line", "name", "kind", "op"), "category")
    )
    found = match_rows(mixed, CHAIN)
    assert found["op"].tolist() == ["custom-call.1", "custom-call.2", "mul.2", "add.1"]
    assert found.dtypes["confidence"] == np.float64


@pytest.mark.parametrize("instructions", [CHAIN, CHAIN.iloc[:0], program([op("p", "parameter")])])
def test_no_work_and_no_instruction_give_an_empty_answer(instructions):
    assert match_rows(launch("add_1").iloc[:0], instructions).empty
    idle = program([op("p", "parameter")])
    assert ops_of(idle, launch("add_1")) == [""]


def test_a_hundred_launches_of_a_graph_are_matched_once(monkeypatch):
    solved = []

    def counted(*args, **kwargs):
        solved.append(1)
        return solve(*args, **kwargs)

    solve = match.solve
    monkeypatch.setattr(match, "solve", counted)
    names, nodes = ("add_1", GEMM_KERNEL, "mul_2"), [0, 2, 1]
    parts = [launch(*names, nodes=nodes, correlation=n, start=1000 * n) for n in range(1, 101)]
    assert ops_of(CHAIN, *parts) == ["add.1", "custom-call.1", "mul.2"] * 100
    assert len(solved) == 1


def test_a_program_that_calls_itself_is_read_all_the_same():
    damaged = program([op("while.1", "while", "main"), fusion("a.1")])
    assert ops_of(damaged, launch("a_1", op=GRAPH)) in (["a.1"], [""])
