"""moeprof's kernels on GPUs as XLA runs them: several of a call, slices in place, late peers.

Two devices, two layers in a loop of 200 µs each. 512 tokens per rank and 2 ranks make room for
1024 received rows and, with two experts per token, 2048 rows of experts.
"""

import dataclasses

import pytest
from builders.work import hlo, kernel, traced

from moeprof.analyzers.comparison.alignment import signatures
from moeprof.analyzers.questions.breakdown import breakdown
from moeprof.analyzers.questions.collectives import collectives
from moeprof.analyzers.questions.dispatch_combine import dispatch_combine
from moeprof.analyzers.questions.expert_load import expert_load
from moeprof.analyzers.questions.grouped_gemm import grouped_gemm
from moeprof.analyzers.questions.receive_buffers import receive_buffers
from moeprof.analyzers.questions.roofline import roofline
from moeprof.analyzers.questions.stragglers import stragglers
from moeprof.analyzers.questions.timeline import timeline
from moeprof.hlo.instruction import instructions_of
from moeprof.hlo.program import Program
from moeprof.hlo.shape import arrays_of
from moeprof.tables.routing import RECEIVED, ROUTING

US = 1000
LAYERS, ROUND = 2, 200 * US
ROWS, FAN_OUT, HIDDEN, FFN, GROUPS = 1024, 2048, 1024, 512, 4
WORST = 2 * FAN_OUT * HIDDEN * FFN  # 2,147,483,648 FLOP
IN, BACK = "jit(s)/jvp()/moe/", "jit(s)/transpose(jvp())/moe/"
CONFIG = "{ep_groups = dense<[0, 1]> : tensor<2xi64>, ep_size = 2 : i64, timeout_ms = 60000 : i64}"
PLAN = "void moeprof::gpu::(anonymous namespace)::MoeDispatchPlan<8>(moeprof::gpu::DispatchArgs)"
PULL = "void moeprof::gpu::(anonymous namespace)::MoeDispatchRows<uint4>(moeprof::gpu::RowArgs)"
SUM = "void moeprof::gpu::(anonymous namespace)::MoeCombineRows<__nv_bfloat16>(moeprof::gpu::Args)"
MAIN = "void moeprof::gpu::GroupedGemmKernel<__nv_bfloat16, 256, true>(CUtensorMap, CUtensorMap)"
PRELUDE = "moeprof::gpu::GroupedGemmSchedule(moeprof::gpu::ScheduleArgs)"
TAIL = "void moeprof::gpu::GroupedGemmZeroTail<__nv_bfloat16>(__nv_bfloat16*, int const*)"


def program():
    """A loop over two layers whose weights and gradients are slices of stacked arrays."""
    stacked = f"bf16[{LAYERS},{GROUPS},{HIDDEN},{FFN}]"
    one = f"bf16[1,{GROUPS},{HIDDEN},{FFN}]"
    rows, wide = f"bf16[1,{FAN_OUT},{HIDDEN}]", f"bf16[1,{FAN_OUT},{FFN}]"

    def body(op, opcode, shape, operands="", part="body", **more):
        size = sum(array.size_bytes for array in arrays_of(shape))
        return hlo(op, opcode, operands, size, shape=shape, computation=part, **more)

    def inside(op, opcode, shape, operands="", part="product", **more):
        return body(op, opcode, shape, operands, part, **more)

    return (
        hlo("loop", "while", called="body", trip_count=LAYERS),
        body("state", "parameter", stacked, parameter=0),
        body("x", "parameter", f"bf16[512,{HIDDEN}]", parameter=0),
        body(
            *("recv", "custom-call"),
            f"(bf16[{ROWS},{HIDDEN}], f32[{ROWS},0], s32[{ROWS},2], f32[{ROWS},2])",
            "x",
            custom_call_target="moeprof_moe_dispatch_inproc",
            backend_config=CONFIG,
            op_name=IN + "dispatch/moeprof_moe_dispatch",
        ),
        body("rows", "gather", rows, "recv", op_name=IN + "local_permute/gather"),
        body("same", "bitcast", rows, "rows"),
        body(
            *("up", "fusion", wide, "same state"),
            called="product",
            fusion_kind="kCustom",
            op_name=IN + "experts/jit(bind_grouped_gemm)/moeprof_grouped_gemm",
        ),
        inside("p0", "parameter", rows, parameter=0),
        inside("p1", "parameter", stacked, parameter=1),
        inside("slice", "dynamic-slice", one, "p1"),
        inside("lens", "parameter", f"s32[1,{GROUPS}]", parameter=2),
        inside(
            *("call", "custom-call", wide, "p0 slice lens"),
            is_root=True,
            custom_call_target="moeprof_grouped_gemm",
            op_name=IN + "experts/jit(bind_grouped_gemm)/moeprof_grouped_gemm",
        ),
        body(
            *("grad", "fusion", stacked, "same up state"),
            called="gradient",
            fusion_kind="kCustom",
            op_name=BACK + "experts/jit(dynamic_update_index_in_dim)/dynamic_update_slice",
        ),
        inside("q0", "parameter", rows, part="gradient", parameter=0),
        inside("q1", "parameter", wide, part="gradient", parameter=1),
        inside("q2", "parameter", stacked, part="gradient", parameter=2),
        inside(
            *("sums", "custom-call", one, "q0 q1", "gradient"),
            custom_call_target="moeprof_grouped_gemm_variable_k",
            op_name=BACK + "experts/jit(bind_variable_k)/moeprof_grouped_gemm_variable_k",
        ),
        inside("placed", "dynamic-update-slice", stacked, "q2 sums", "gradient", is_root=True),
        body(
            *("out", "custom-call", f"(bf16[512,{HIDDEN}], f32[512,0])", "rows"),
            custom_call_target="moeprof_moe_combine_inproc",
            backend_config=CONFIG,
            op_name=IN + "combine/moeprof_moe_combine",
        ),
    )


def run(product="up", gradient="grad", late=10 * US):
    """What both devices do; device 1 comes `late` to each dispatch, whose end is the same."""
    work = []
    for start in (0, ROUND):
        for device in (0, 1):
            at = start + late * device
            pulled = start + 5 * US + late * device
            work += [
                kernel("recv", at, 5 * US, PLAN, "13", device=device),
                kernel("recv", pulled, start + 25 * US - pulled, PULL, "14", device=device),
                kernel(product, start + 30 * US, 1 * US, PRELUDE, "13", device=device),
                kernel(product, start + 31 * US, 40 * US, MAIN, "13", device=device),
                kernel(product, start + 71 * US, 2 * US, TAIL, "13", device=device),
                kernel(gradient, start + 80 * US, 1 * US, PRELUDE, "13", device=device),
                kernel(gradient, start + 81 * US, 42 * US, MAIN, "13", device=device),
                kernel("out", start + 130 * US, 20 * US, SUM, "13", device=device),
            ]
    trace = traced(work, program(), models={"a": "NVIDIA H100 80GB HBM3"})
    routing = [
        {"step": 0, "layer": layer, "expert": e, "rank": e // GROUPS, "tokens": 128 * (1 + e % 2)}
        for layer in range(LAYERS)
        for e in range(2 * GROUPS)
    ]
    received = [
        {"step": 0, "layer": layer, "group": 0, "rank": rank, "rows": 512 + 256 * rank}
        for layer in range(LAYERS)
        for rank in (0, 1)
    ]
    meta = dataclasses.replace(trace.meta, are_steps_numbered_by_script=True)
    return dataclasses.replace(
        trace, meta=meta, routing=ROUTING.frame(routing), received=RECEIVED.frame(received)
    )


def figures(analysis):
    return {metric.metric: metric.value for metric in analysis.headline}


# XLA may name the fusion that slices, or the call inside it, as the op of the kernels.
NAMES = [("up", "grad"), ("call", "sums")]


@pytest.mark.parametrize("names", NAMES)
def test_flops_of_a_call_count_once_however_many_kernels_it_has(names):
    """Per device 2 calls of 43 µs each: 2 · 2.147 GFLOP in 86 µs are 49.94 TFLOP/s at most.

    768 of 2048 rows held a pair (4 experts with 128 and 256 tokens): 37.5 % of that.
    """
    table = grouped_gemm(run(*names)).table.set_index("op")
    assert table["form"].tolist() == ["custom call"] * 2
    for name in names:
        found = table.loc[name]
        assert found[["groups", "rows"]].tolist() == [GROUPS, FAN_OUT]
        assert found["calls"] == LAYERS
        assert found["per_step_ns"] == LAYERS * 43 * US
        assert found["worst_flops"] == LAYERS * WORST
        assert found["used_rows"] == 768
        assert found["most_tflop_per_s"] == pytest.approx(49.941, abs=1e-3)
        assert found["tflop_per_s"] == pytest.approx(18.728, abs=1e-3)
    assert table["is_weight_gradient"].tolist() == [name == names[1] for name in table.index]
    assert table.loc[names[0], ["k", "n"]].tolist() == [HIDDEN, FFN]


@pytest.mark.parametrize("names", NAMES)
def test_flops_of_the_model_are_those_of_rows_that_held_pairs(names):
    """Two layers, two products, 768 rows on each of two devices."""
    found = figures(roofline(run(*names)))
    assert found["model_flops"] == LAYERS * 2 * 2 * 768 * HIDDEN * FFN


@pytest.mark.parametrize("names", NAMES)
def test_no_product_is_faster_than_the_rows_that_it_multiplied(names):
    """768 of 2048 rows: 2 · 768 · 1024 · 512 FLOP in 43 µs; bytes: rows of both widths, 4 matrices.

    (768 · (1024 + 512) + 4 · 1024 · 512) · 2 B = 6,553,600 B a call.
    """
    analysis = roofline(run(*names))
    table = analysis.table.set_index("op")
    for name in names:
        assert table.loc[name, "flops"] == LAYERS * 2 * 768 * HIDDEN * FFN
        assert table.loc[name, "bytes"] == pytest.approx(LAYERS * 6_553_600, rel=2e-5)
        assert table.loc[name, "tflop_per_s"] == pytest.approx(18.728, abs=1e-3)
    assert figures(analysis)["hardware_flops"] == figures(analysis)["model_flops"]


def test_without_routing_no_product_has_a_rate_and_the_step_a_most():
    trace = run()
    trace = dataclasses.replace(trace, routing=ROUTING.frame(), received=RECEIVED.frame())
    analysis = roofline(trace)
    table = analysis.table.set_index("op")
    assert table.loc[["up", "grad"], ["flops", "bytes", "tflop_per_s"]].isna().all(axis=None)
    found = figures(analysis)
    assert (found["hardware_flops"], found["model_flops"]) == (None, None)
    assert found["model_flops_at_most"] == LAYERS * 2 * WORST


def test_a_dispatch_of_two_kernels_is_one_call_and_waits_for_the_late_rank():
    """[0, 25) and [10, 25) µs: rank 0 waits 10 µs, the transfer takes 15.

    Rows of 2 KiB, 640 on average: 1.31 MB, of which half crosses the link: 43.7 GB/s.
    """
    table = dispatch_combine(run()).table.set_index("direction")
    found = table.loc["dispatch"]
    assert (found["form"], found["group_size"], found["calls"]) == ("custom call", 2, LAYERS)
    assert found["per_step_ns"] == LAYERS * (25 + 15) * US / 2
    assert found["wait_ns"] == LAYERS * 10 * US / 2
    assert (found["transfer_ns"], found["skew_ns"], found["last_rank"]) == (15 * US, 10 * US, 1)
    assert found["used_bytes"] == 640 * HIDDEN * 2
    assert found["bus_gb_per_s"] == pytest.approx(640 * HIDDEN * 2 / 15_000 / 2)
    assert table.loc["combine", "used_bytes"] == 640 * HIDDEN * 2


def test_a_wait_inside_a_kernel_does_not_change_the_bandwidth():
    """However early rank 0 begins to wait, what is divided by is the time of the last to come."""
    speeds = [dispatch_combine(run(late=late)).table for late in (0, 10 * US)]
    early, late = (table.set_index("direction").loc["dispatch"] for table in speeds)
    assert early["transfer_ns"] == 25 * US
    assert late["transfer_ns"] == 15 * US
    assert early["wait_ns"] == 0


def test_the_late_rank_is_the_straggler():
    table = stragglers(run()).table.set_index("rank")
    assert table.loc[1, "waited_for_ns"] == LAYERS * 10 * US
    assert table.loc[1, "mostly"].startswith("tokens")
    assert table.loc[0, "waited_for_ns"] == 0


def test_exchanges_are_communication_and_products_are_compute():
    trace = run()
    table = timeline(trace).table
    assert table["exposed_communication_ns"].tolist() == [LAYERS * 45 * US, LAYERS * 35 * US]
    assert set(collectives(trace).table["op"]) == {"recv", "out"}
    parts = breakdown(trace).table.groupby("component")["per_step_ns"].sum()
    assert parts["grouped_gemm"] == LAYERS * 86 * US
    assert parts["dispatch"] == LAYERS * 20 * US
    assert parts["combine"] == LAYERS * 20 * US


@pytest.mark.parametrize("names", NAMES)
def test_a_buffer_behind_a_slicing_fusion_is_the_one_outside(names):
    """Both products read the gathered rows: one buffer, filled once per layer."""
    table = receive_buffers(run(*names)).table.set_index("role")
    assert table.loc["fan_out", ["op", "worst_rows"]].tolist() == ["up", FAN_OUT]
    assert table.loc["fan_out", "calls"] == LAYERS
    assert table.loc["fan_out", "used_rows"] == 768


@pytest.mark.parametrize("names", NAMES)
def test_the_tax_is_known_where_slices_wrap_the_products(names):
    """Pairs 768 on either rank: even, so the tax is nothing rather than unknown."""
    assert figures(expert_load(run(*names)))["tax_most"] == 0


def test_a_wrapped_call_is_compared_with_one_that_is_not():
    rows = run().hlo_ops
    named = rows.reset_index(drop=True)
    wanted = named.index[named["op"].isin(["up", "call", "grad", "sums"])]
    found = signatures(Program(instructions_of(named)), named, wanted).set_index("row")
    ops = {str(named["op"].iat[row]): found.loc[row] for row in wanted}
    assert ops["up"]["op"] == ops["call"]["op"] == "moeprof_grouped_gemm"
    assert ops["grad"]["op"] == ops["sums"]["op"] == "moeprof_grouped_gemm_variable_k"
    assert {sign["role"] for sign in ops.values()} == {"product"}


def test_without_a_program_names_tell_exchanges_and_products():
    work = [kernel("", 0, 7 * US, name=PULL), kernel("", 8 * US, 9 * US, name=MAIN)]
    trace = traced(work, models={"a": "NVIDIA H100 80GB HBM3"})
    assert dispatch_combine(trace).table["direction"].tolist() == ["dispatch"]
    assert timeline(trace).table["exposed_communication_ns"].tolist() == [7 * US]
