"""Each pattern: a trace that shows it, with its cost by hand, and the nearest that does not."""

import dataclasses

import pytest
from builders.programs import call, dims, parameter
from builders.work import BACKWARD, FORWARD, hlo, kernel, on_cpu, traced

from moeprof.analyzers.patterns import (
    atomic_scatter,
    dense_ragged_dot,
    fp32_logits,
    garbage_pauses,
    gathered_experts,
    numa_binding,
    small_kernels,
    unattributed_graphs,
)
from moeprof.tables.host_side import HOST_EVENTS, HOST_FACTS
from moeprof.tables.name_rule import NameRule, NameRules
from moeprof.tables.routing import RECEIVED, ROUTING
from moeprof.tables.trace import with_names


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


def gathered(shape, reader="product", more=()):
    """Weights [4, 16, 32] of 4 experts per rank are gathered in 500 ns and multiplied in 100."""
    return traced(
        [
            kernel("all-gather.1", 0, 500), kernel("product", 500, 100), kernel("other", 600, 100),
            *(kernel("sum", 700, 200) for row in more if row["op"] == "sum"),
        ],
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
            *more,
        ],
    )  # fmt: skip


def test_weights_gathered_over_the_experts():
    hint = gathered_experts.find(gathered("bf16[8,16,32]"))
    assert hint.gain_ns == 500
    assert "1 all-gather(s)" in hint.evidence
    assert "8.000 KiB" in hint.evidence
    assert "sums of their gradients aside" in hint.evidence


@pytest.mark.parametrize(
    ("opcode", "groups", "shape", "gain_ns", "told"),
    [
        ("all-reduce", "{{0,1}}", "bf16[8,16,32]", 700, "and 1 all-reduce(s) of their gradients"),
        ("reduce-scatter", "{{0,1}}", "bf16[8,16,32]", 700, "and 1 reduce-scatter(s) of their"),
        ("all-reduce", "{{0},{1}}", "bf16[8,16,32]", 500, "sums of their gradients aside"),
        ("all-reduce", "{{0,1}}", "bf16[4,16,32]", 500, "sums of their gradients aside"),
    ],
)
def test_gradients_of_gathered_weights_are_summed_over_the_same_devices(
    opcode, groups, shape, gain_ns, told
):
    name = BACKWARD + "experts/dot_general"
    made = hlo("dw", "dot", "view view", shape=shape, op_name=name)
    summed = hlo("sum", opcode, "dw", shape=shape, replica_groups=groups, op_name=name)
    hint = gathered_experts.find(gathered("bf16[8,16,32]", more=(made, summed)))
    assert hint.gain_ns == gain_ns
    assert told in hint.evidence


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
