"""Each pattern: a trace that shows it, with its cost by hand, and the nearest that does not."""

import dataclasses

import pytest
from builders.programs import call, dims, parameter
from builders.work import hlo, kernel, traced

from moeprof.analyzers.pattern import Hint, Pattern
from moeprof.analyzers.patterns import (
    atomic_scatter,
    dense_ragged_dot,
    exposed_exchange,
    fp32_logits,
    garbage_pauses,
    gathered_experts,
    late_rank,
    numa_binding,
    recomputed_exchange,
    slow_ragged_exchange,
    small_kernels,
    unattributed_graphs,
    unbalanced_experts,
    unfinished_collective,
    worst_case_buffers,
)
from moeprof.analyzers.questions.hints import hints
from moeprof.analyzers.registry import all_patterns
from moeprof.tables.host_side import HOST_EVENTS, HOST_FACTS
from moeprof.tables.name_rule import NameRule, NameRules
from moeprof.tables.routing import RECEIVED, ROUTING
from moeprof.tables.trace import with_names

FORWARD = "jit(step)/jvp()/moe/"
BACKWARD = "jit(step)/transpose(jvp())/moe/"
RECOMPUTED = "jit(step)/transpose(jvp())/checkpoint/rematted_computation/moe/"


def on_cpu(trace):
    return dataclasses.replace(trace, meta=dataclasses.replace(trace.meta, platform="cpu"))


def scattered(combine="add", shape="bf16[64,8]"):
    """A fusion of 300 ns that scatters rows; how two rows of one place combine is asked."""
    return traced(
        [kernel("scatter_fusion", 0, 300)],
        [
            hlo("scatter_fusion", "fusion", called="inside", shape=shape,
                op_name=BACKWARD + "permute/scatter-add"),
            hlo("into", "scatter", computation="inside", shape=shape, called="both"),
            hlo("sum", combine, computation="both", shape="bf16[]", is_root=True),
        ],
    )  # fmt: skip


def test_a_scatter_add_of_rows_is_atomic():
    hint = atomic_scatter.find(scattered())
    assert hint.gain_ns == 300
    assert "scatter_fusion, 300 ns in permute, backward" in hint.evidence


@pytest.mark.parametrize(
    "trace",
    [
        scattered(combine="parameter"),  # the later of two rows stands: no atomics
        scattered(shape="s32[64]"),  # counts, not rows
        on_cpu(scattered()),
    ],
)
def test_other_scatters_are_not(trace):
    assert atomic_scatter.find(trace) is None


def gathered(shape, reader="product"):
    """Weights [4, 16, 32] of 4 experts per rank are gathered in 500 ns and multiplied in 100."""
    return traced(
        [kernel("all-gather.1", 0, 500), kernel("product", 500, 100), kernel("other", 600, 100)],
        [
            hlo("weights", "parameter", shape="bf16[4,16,32]", parameter=0),
            hlo("x", "parameter", shape="bf16[8,64,16]", parameter=1),
            hlo("all-gather.1", "all-gather", "weights", 8192, shape=shape,
                replica_groups="{{0,1}}"),
            hlo("view", "bitcast", "all-gather.1", shape=shape),
            hlo("product", "dot", "x view" if reader == "product" else "x x",
                shape="bf16[8,64,32]", op_name=FORWARD + "experts/dot_general",
                details="lhs_contracting=2 rhs_contracting=1 lhs_batch=0 rhs_batch=0"),
            hlo("other", "negate", "view", shape=shape, op_name="jit(step)/optimizer/neg"),
        ],
    )  # fmt: skip


def test_weights_gathered_over_the_experts():
    hint = gathered_experts.find(gathered("bf16[8,16,32]"))
    assert hint.gain_ns == 500
    assert "1 all-gather(s)" in hint.evidence
    assert "8.000 KiB" in hint.evidence


@pytest.mark.parametrize(
    "trace",
    [
        gathered("bf16[4,32,32]"),  # FSDP: a rank's own experts become whole
        gathered("bf16[8,16,32]", reader="other"),  # for something else
    ],
)
def test_weights_gathered_for_fsdp_are_not(trace):
    assert gathered_experts.find(trace) is None


def multiplied(name):
    """[64, 4·16] × [4·16, 32] in 1000 ns: rows once for each of 4 experts, or a batch of 4."""
    op_name = FORWARD + f"experts/{name}"
    dense = name == "ragged_dot_general"
    config = dims() if dense else dims((2,), (1,), (0,), (0,))
    shape = "(bf16[64,32], s8[8])" if dense else "(bf16[4,16,32], s8[8])"
    product = call(
        "__cublas$lt$matmul", shape, *("xv wv" if dense else "x w").split(), config=config
    )
    return traced(
        [kernel("up", 0, 1000)],
        [
            parameter("x", "bf16[64,4,16]" if dense else "bf16[4,16,16]"),
            parameter("w", "bf16[4,16,32]"),
            hlo("xv", "bitcast", "x", shape="bf16[64,64]"),
            hlo("wv", "bitcast", "w", shape="bf16[64,32]"),
            {**product, "op": "up", "op_name": op_name},
        ],
        models={"a": "NVIDIA H100 80GB HBM3"},
    )


def test_a_ragged_product_that_runs_as_a_dense_one():
    hint = dense_ragged_dot.find(multiplied("ragged_dot_general"))
    assert hint.gain_ns == 750  # 3 of 4 parts
    assert "1 product(s) of the experts are dense fallbacks of ragged_dot over 4" in hint.evidence


def test_what_a_ragged_product_wastes_at_most():
    """Half of the rows are empty: of 250 ns that are left 125; masked copies 40; "odd" whole."""
    trace = multiplied("ragged_dot_general")
    more = traced(
        [kernel("up", 0, 1000), kernel("rows", 1000, 40), kernel("odd", 1040, 60)],
        [
            *trace.hlo_ops.to_dict("records"),
            hlo("one", "parameter", shape="bf16[64,16]"),
            hlo("rows", "broadcast", "one", shape="bf16[4,64,16]", details="dimensions=1,2",
                op_name=FORWARD + "experts/ragged_dot_general"),
            parameter("xo", "bf16[64,64]"),
            parameter("wo", "bf16[64,32]"),
            {**call("__cublas$lt$matmul", "(bf16[64,32], s8[8])", "xo", "wo", config=dims()),
             "op": "odd", "op_name": FORWARD + "experts/ragged_dot_general"},
        ],
    )  # fmt: skip
    tokens = [{"step": 0, "layer": 0, "expert": e, "rank": 0, "tokens": 8} for e in range(4)]
    received = [{"step": 0, "layer": 0, "rank": 0, "group": 0, "rows": 32}]
    meta = dataclasses.replace(more.meta, are_steps_numbered_by_script=True)
    more = dataclasses.replace(
        more, meta=meta, routing=ROUTING.frame(tokens), received=RECEIVED.frame(received)
    )
    hint = dense_ragged_dot.find(more)
    assert hint.gain_ns == pytest.approx(750 + 125 + 40 + 60)
    assert hint.evidence.endswith(
        "1.000 µs a step, of which 750 ns multiply zeros in place of other experts' rows; 125 ns "
        "rows without tokens; the masked copies that they read take 40 ns more; 1 more "
        "fallback(s), 60 ns, whose number of experts the program does not show, may be saved whole"
    )


def test_a_rule_of_the_user_hides_no_fallback():
    trace = multiplied("ragged_dot_general")
    named = with_names(trace, NameRules("names.yml", (NameRule("dense_mlp", op="up"),)))
    assert dense_ragged_dot.find(named) == dense_ragged_dot.find(trace)


def test_products_in_a_batch_of_experts_are_no_fallback_whatever_they_are_called():
    trace = multiplied("dot_general")
    named = with_names(trace, NameRules("names.yml", (NameRule("dense_mlp", op="up"),)))
    assert dense_ragged_dot.find(named) is None


def test_products_in_a_batch_of_experts_are_no_fallback():
    assert dense_ragged_dot.find(multiplied("dot_general")) is None


def headed(dtype, rows=4096, name="head/dot_general", writer="dot"):
    shape = f"{dtype}[{rows},32768]"
    return traced(
        [kernel("logits", 0, 800)],
        [
            hlo("kernel", "parameter", shape="bf16[2048,32768]", parameter=0),
            hlo("logits", writer, "kernel", shape=shape, op_name=f"jit(step)/jvp()/{name}"),
        ],
    )


def test_float32_logits_cost_half_of_their_bytes():
    hint = fp32_logits.find(headed("f32"))
    assert hint.gain_bytes == 4096 * 32768 * 4 // 2
    assert hint.gain_ns == 400
    assert "512.0 MiB" in hint.evidence


@pytest.mark.parametrize(
    "trace",
    [
        headed("bf16"),
        headed("f32", rows=64),  # 8 MiB
        headed("f32", rows=2048),  # the gradient of the head's weight, which has its shape
        headed("f32", name="optimizer/mul", writer="multiply"),
    ],
)
def test_other_arrays_of_the_head_are_no_float32_logits(trace):
    assert fp32_logits.find(trace) is None


def exchanged(scope, opcode="all-to-all", other=(700, 300)):
    """700 ns of dispatch, and other work from a start for a time."""
    return traced(
        [kernel("x", 0, 700), kernel("y", *other, line="2")],
        [
            hlo("x", opcode, "y", 64, shape="bf16[4,8]", op_name=scope + "dispatch/a2a"),
            hlo("y", "add", shape="bf16[4,8]", op_name=FORWARD + "router/add"),
        ],
    )


def test_an_exchange_that_runs_as_recompute():
    assert recomputed_exchange.find(exchanged(RECOMPUTED)).gain_ns == 700


@pytest.mark.parametrize(
    "trace",
    [exchanged(FORWARD), exchanged(BACKWARD), exchanged(RECOMPUTED, opcode="transpose")],
)
def test_an_exchange_once_each_way_is_none(trace):
    assert recomputed_exchange.find(trace) is None


def ragged(updates, name="void stream_executor::gpu::RaggedAllToAllKernelImpl<long>()"):
    """Two devices exchange rows of 1 MiB at most in 2,000,000 ns."""
    offsets = f"s64[{updates}]"
    return traced(
        [kernel("ragged", 0, 2_000_000, name, device=device) for device in (0, 1)],
        [
            hlo("rows", "parameter", shape="bf16[1024,512]", size_bytes=1 << 20, parameter=0),
            hlo("room", "parameter", shape="bf16[2048,512]", size_bytes=1 << 21, parameter=1),
            hlo("at", "parameter", shape=offsets, size_bytes=8 * updates, parameter=2),
            hlo("ragged", "ragged-all-to-all", "rows room at at at at", 1 << 21,
                shape="bf16[2048,512]", replica_groups="{{0,1}}",
                op_name=FORWARD + "dispatch/ragged_all_to_all"),
        ],
    )  # fmt: skip


def test_few_updates_per_peer_starve_the_one_shot_kernel():
    hint = slow_ragged_exchange.find(ragged(updates=2))
    assert hint.gain_ns == 2_000_000
    assert "1 update(s) per peer" in hint.evidence
    assert "at most 1.000 MiB, so at most 0.5 GB/s" in hint.evidence  # 1,048,576 B in 2 ms


@pytest.mark.parametrize(
    "trace", [ragged(updates=256), ragged(updates=2, name="ncclDevKernel_SendRecv")]
)
def test_many_updates_or_nccl_do_not(trace):
    assert slow_ragged_exchange.find(trace) is None


def late(by_ns):
    """Rank 1 enters every all-to-all `by_ns` after rank 0; both leave together; 4 steps."""
    events = []
    for step in range(4):
        start = 10_000 * step
        for device, late_ns in ((0, 0), (1, by_ns)):
            length = 1000 - late_ns
            at = start + late_ns
            events += [kernel("a2a", at, length, device=device, step=step)]
            events += [kernel("k", start + 1000, 1000, device=device, step=step)]
    ops = [
        hlo("a2a", "all-to-all", "k", 64, shape="f32[8]", replica_groups="{{0,1}}"),
        hlo("k", "add", shape="f32[8]", size_bytes=32),
    ]
    return traced(events, ops)


def test_a_rank_that_all_others_wait_for():
    hint = late_rank.find(late(400))
    assert hint.gain_ns == 400
    assert hint.evidence.startswith("others wait 400 ns a step for rank 1")
    assert "it is the most waited-for in 4 of 4 step(s)" in hint.evidence


def beside(*works):
    """Each rank works on its own ops (op: ns), then meets the others at 1000; one step, 3 ranks."""
    events = []
    for device, mine in enumerate(works):
        at = 0
        for op, length in mine.items():
            at += length if op == "gap" else 0
            if op != "gap":
                events.append(kernel(op, at, length, device=device))
                at += length
        events.append(kernel("a2a", at, 1100 - at, device=device))
    ops = [
        hlo("a2a", "all-to-all", shape="f32[8]", replica_groups="{{0,1,2}}"),
        *(
            hlo(
                op, "multiply", shape="f32[8]", op_name=FORWARD + "gate/mul", frames="/a/b/f.py:7:g"
            )
            for op in ("p", "q", "r", "s", "t", "u")
        ),
    ]
    return traced(events, ops, {0: (0, 1100)})


def test_a_late_rank_is_told_with_the_op_that_it_runs_longer():
    """Others wait 1000 − 350 and 1000 − 300, 675 on average; r takes 650 against 50 and 0."""
    hint = late_rank.find(beside({"p": 300, "r": 50}, {"p": 300}, {"p": 350, "r": 650}))
    assert hint.gain_ns == 675
    assert hint.evidence.endswith(
        "It runs r (router, f.py:7) 625 ns a step longer than the median of the other ranks, "
        "92.6 % of that waiting"
    )


def test_a_late_rank_whose_ops_all_take_a_little_longer():
    """Six ops of 100 against 50 each: others wait 300, each op is 50 of it, all are 300."""
    slow, fast = dict.fromkeys("pqrstu", 100), dict.fromkeys("pqrstu", 50)
    hint = late_rank.find(beside(fast, fast, slow))
    assert hint.evidence.endswith(
        "No single op explains it: all its ops together take 300 ns a step longer than the median "
        "of the other ranks"
    )
    assert "clock" in hint.change


def test_a_late_rank_that_idled():
    hint = late_rank.find(beside({"p": 100}, {"p": 100}, {"gap": 400, "p": 100}))
    assert hint.evidence.endswith("It idles 400 ns a step longer than the median of the others")
    assert "host" in hint.change


def test_what_shares_of_gains_are_of_is_said():
    analysis = hints(late(400))
    gains = analysis.table.set_index("hint")["gain_share"]
    assert gains["late_rank"] == pytest.approx(400 / 10_000)
    assert gains["idle_between_steps"] == pytest.approx(8_000 / 10_000)
    assert "shares are of the mean interval from step to step, 10.00 µs" in analysis.notes


def test_ranks_that_arrive_together():
    assert late_rank.find(late(0)) is None


def test_an_exchange_that_runs_alone():
    hint = exposed_exchange.find(exchanged(FORWARD))
    assert hint.gain_ns == 700
    assert "700 ns a step (70.0 % of it)" in hint.evidence


@pytest.mark.parametrize("trace", [exchanged(FORWARD, other=(0, 1000)), on_cpu(exchanged(FORWARD))])
def test_an_exchange_that_hides_or_shares_its_cores(trace):
    assert exposed_exchange.find(trace) is None


def routed(*tokens):
    """One layer, 4 experts on 2 ranks, 100 ns of grouped products."""
    trace = traced(
        [kernel("up", 0, 100)],
        [hlo("up", "custom-call", shape="bf16[64,8]", custom_call_target="moeprof_grouped_gemm",
             op_name=FORWARD + "experts/c")],
    )  # fmt: skip
    rows = [
        {"step": 0, "layer": 5, "expert": expert, "rank": expert // 2, "tokens": count}
        for expert, count in enumerate(tokens)
    ]
    meta = dataclasses.replace(trace.meta, are_steps_numbered_by_script=True)
    recorded = {"routing": ROUTING.frame(rows), "received": RECEIVED.frame()}
    return dataclasses.replace(trace, meta=meta, **recorded)


def test_a_rank_with_most_of_the_tokens():
    hint = unbalanced_experts.find(routed(50, 10, 10, 10))
    assert "in layer 5 rank 0 gets 1.50 × the mean" in hint.evidence  # 60 of a mean of 40
    assert "expert 0 2.50 × the mean" in hint.evidence  # 50 of a mean of 20
    assert hint.gain_ns == pytest.approx(100 * (60 - 40) / 40)


def test_ranks_that_are_even():
    assert unbalanced_experts.find(routed(30, 10, 10, 30)) is None


def buffered(*rows):
    """A receive buffer of 64 rows × 8 bf16 = 1024 bytes; `rows` of it hold tokens, by rank."""
    trace = traced(
        [kernel("recv", 0, 100)],
        [
            hlo("x", "parameter", shape="bf16[16,8]", parameter=0),
            hlo("recv", "custom-call", "x", shape="bf16[64,8]", op_name=FORWARD + "dispatch/c",
                custom_call_target="moeprof_moe_dispatch_inproc"),
        ],
    )  # fmt: skip
    received = [
        {"step": 0, "layer": 0, "group": 0, "rank": r, "rows": count}
        for r, count in enumerate(rows)
    ]
    meta = dataclasses.replace(trace.meta, are_steps_numbered_by_script=True)
    return dataclasses.replace(
        trace, meta=meta, received=RECEIVED.frame(received), routing=ROUTING.frame()
    )


def test_buffers_that_are_mostly_empty():
    """The mean rank uses 16 of 64 rows, the fullest 24: a cap at those drops nothing."""
    hint = worst_case_buffers.find(buffered(8, 16, 16, 24))
    assert hint.gain_bytes == 1024 - 24 * 16
    assert "25.0 % used" in hint.evidence
    assert hint.evidence.endswith(
        "a cap at what the fullest rank used (24 rows) would have dropped nothing here, and saves "
        "640 B of the 1 buffer(s) where that is known if all of them live at once"
    )


def test_buffers_that_are_filled():
    assert worst_case_buffers.find(buffered(48, 48, 48, 48)) is None


def in_graphs(hidden_ns):
    return traced(
        [
            kernel("", 0, hidden_ns, "k", evidence="none", graph_node=3, confidence=0.0),
            kernel("add.1", 1000, 1000 - hidden_ns, evidence="recorded", confidence=1.0),
        ],
        [hlo("add.1", "add", shape="f32[8]")],
    )


def test_graphs_that_hide_ops():
    assert "60.0 % of device time" in unattributed_graphs.find(in_graphs(600)).evidence


def test_graphs_that_hide_next_to_nothing():
    assert unattributed_graphs.find(in_graphs(4)) is None


def silent(*, opcode="ragged-all-to-all", used=False, recorded_s=60):
    """Work until 1 us after the start of a capture of a minute, in a step that was cut."""
    trace = traced(
        [kernel("add.1", 0, 1000)],
        [
            hlo("add.1", "add", shape="f32[8]"),
            hlo("x", opcode, "add.1 add.1 add.1 add.1 add.1 add.1", shape="f32[8]"),
        ],
    )
    meta = dataclasses.replace(trace.meta, recorded_ns=recorded_s * 1_000_000_000)
    return dataclasses.replace(
        trace, meta=meta, steps=trace.steps.assign(used=used, module=7, reason="cut")
    )


def test_devices_that_fall_silent_before_a_ragged_exchange():
    hint = unfinished_collective.find(silent())
    assert "do nothing for 60.00 s" in hint.evidence
    assert "last work to end is add.1" in hint.evidence
    assert "ragged_all_to_all_decomposer=true" in hint.change


@pytest.mark.parametrize(
    "trace", [silent(opcode="add"), silent(used=True), silent(recorded_s=5), silent(recorded_s=0)]
)
def test_devices_that_are_done_have_not_hung(trace):
    assert unfinished_collective.find(trace) is None


def test_a_hang_in_a_plain_exchange_names_no_flag():
    assert "decomposer" not in unfinished_collective.find(silent(opcode="all-to-all")).change


def collected(*pauses):
    """Two steps [0, 1000) and [2000, 3000); collections of host a as (start, length)."""
    events = [kernel("k", 0, 1000), kernel("k", 2000, 1000, step=1)]
    trace = traced(events, [hlo("k", "add", shape="f32[8]")])
    rows = [
        {"host": "a", "line": "gc", "kind": "garbage_collection", "name": "generation 2",
         "step": -1, "start_ns": start, "duration_ns": length, "size_bytes": -1}
        for start, length in pauses
    ]  # fmt: skip
    return dataclasses.replace(trace, host_events=HOST_EVENTS.frame(rows))


def test_garbage_collections_within_steps():
    # of [900, 1300) 100 ns are in a step, of [2100, 2400) all 300: 200 ns per step
    hint = garbage_pauses.find(collected((900, 400), (2100, 300)))
    assert hint.gain_ns == 200
    assert "longest pause of the capture lasts 400 ns" in hint.evidence


def without_executions():
    """Steps of two hosts, neither of which has an execution that would place them in its time."""
    trace = collected((900, 400))
    return dataclasses.replace(trace, meta=dataclasses.replace(trace.meta, hosts=("a", "b")))


@pytest.mark.parametrize("trace", [collected(), collected((1200, 500)), without_executions()])
def test_garbage_collections_between_steps_cost_none(trace):
    assert garbage_pauses.find(trace) is None


def placed(nodes, platform="gpu"):
    trace = traced([kernel("k", 0, 10)], [hlo("k", "add", shape="f32[8]")])
    facts = HOST_FACTS.frame([{"host": "a", "key": "numa_nodes", "value": nodes}])
    meta = dataclasses.replace(trace.meta, platform=platform)
    return dataclasses.replace(trace, meta=meta, host_facts=facts)


def test_a_process_on_two_sockets():
    assert "host a: nodes 0,1" in numa_binding.find(placed("0,1")).evidence


@pytest.mark.parametrize("trace", [placed("1"), placed(""), placed("0,1", platform="cpu")])
def test_a_process_on_one_socket(trace):
    assert numa_binding.find(trace) is None


def launched_often(count=1200, gap_ns=1000, node=-1, models=None):
    """Kernels of 9 us with a gap after each."""
    work = [kernel("k", at * (9000 + gap_ns), 9000, graph_node=node) for at in range(count)]
    return traced(work, [hlo("k", "add", shape="f32[8]")], models=models)


def test_many_short_kernels_on_a_device_that_runs_dry():
    hint = small_kernels.find(launched_often())
    assert hint.gain_ns == 1199 * 1000
    assert "1,200 kernels a step" in hint.evidence
    assert "KERNARG" not in hint.change
    amd = small_kernels.find(launched_often(models={"a": "AMD Instinct MI300X"}))
    assert "HSA_KERNARG_POOL_SIZE" in amd.change


@pytest.mark.parametrize(
    "trace", [launched_often(count=900), launched_often(gap_ns=0), launched_often(node=1)]
)
def test_short_kernels_that_cost_no_idle_time(trace):
    assert small_kernels.find(trace) is None


def test_hints_are_ordered_by_gain_and_say_what_was_looked_for():
    found = hints(exchanged(RECOMPUTED))
    assert found.table["hint"].tolist() == ["exposed_exchange", "recomputed_exchange"]
    assert found.table["gain_share"].tolist() == [0.7, 0.7]
    assert [(m.metric, m.value) for m in found.headline] == [("hints", 2), ("largest_gain", 700)]
    assert all(name in found.notes[0] for name in (each.name for each in all_patterns()))


def test_gains_of_memory_alone_come_before_gains_that_are_not_known(monkeypatch):
    gains = {"a": (None, None), "b": (None, 10), "c": (50, None), "d": (None, 20), "e": (60, None)}
    hinted = {name: Hint("", "", "", *gain) for name, gain in gains.items()}
    shown = tuple(Pattern(name, "", 1, lambda _, name=name: hinted[name]) for name in gains)
    monkeypatch.setattr("moeprof.analyzers.questions.hints.all_patterns", lambda: shown)
    assert hints(exchanged(RECOMPUTED)).table["hint"].tolist() == ["e", "c", "d", "b", "a"]


def test_without_a_step_nothing_is_said_of_one():
    """Sums are then of the whole capture, which is no step."""
    cut = exchanged(RECOMPUTED)
    found = hints(dataclasses.replace(cut, steps=cut.steps.assign(used=False))).table
    assert found["gain_ns"].tolist() == [700, 700]
    assert found["gain_share"].isna().all()
    assert found["evidence"].str.contains("700 ns in the capture").all()
    assert not found["evidence"].str.contains("step").any()


def test_nothing_to_say_of_a_trace_without_work():
    found = hints(traced(()))
    assert found.table.empty
    assert found.headline[0].value == 0
