import dataclasses

import pytest
from builders.work import hlo, kernel, traced

from moeprof.analyzers.comparison.compare import compare, memory_changes
from moeprof.analyzers.heap.at_peak import memory_difference
from moeprof.analyzers.heap.places import heaps_of
from moeprof.analyzers.questions.memory import memory
from moeprof.tables.host_side import ALLOCATIONS
from moeprof.tables.name_rule import NameRule, NameRules
from moeprof.tables.trace import BUFFERS, MODULES, with_names

GIB = 1 << 30
BACKWARD = "jit(step)/transpose(jvp())/moe/"
OF_BUFFER = {"module": 7, "shape_index": "", "allocation": 1, "kind": "temp", "trace": 0}


def buffer(op, size, offset, life, **more):
    """A temporary buffer at an offset of the heap, from one program point to another."""
    return {
        **OF_BUFFER, "op": op, "buffer": hash(op) % 1000, "size_bytes": size,
        "offset_bytes": offset, "live_from": life[0], "live_to": life[1], "color": 0,
        "is_at_peak": False, **more,
    }  # fmt: skip


def argument(op, size, allocation):
    return buffer(
        op, size, 0, (-1, -1), kind="parameter", trace=-1, is_at_peak=True, allocation=allocation
    )


def planned(ops, buffers, argument_bytes=0, temp_bytes=0, output_bytes=0, **on_host):
    """A program 7 of one kernel, with its plan of memory."""
    trace = traced([kernel(ops[-1]["op"], 0, 100)], ops)
    stated = {name: 0 for name in MODULES.names} | {
        "module": 7, "name": "jit_step", "is_scheduled": True, "argument_bytes": argument_bytes,
        "temp_bytes": temp_bytes, "output_bytes": output_bytes, "executions": 1,
    } | on_host  # fmt: skip
    return dataclasses.replace(
        trace,
        modules=MODULES.frame([stated]),
        buffers=BUFFERS.frame(buffers),
        steps=trace.steps.assign(module=7),
    )


STEP = planned(
    [
        hlo("w", "parameter", shape="bf16[16,32]", op_name="params['w']", parameter=0),
        hlo("m", "parameter", shape="f32[16,32]", op_name="opt_state[0].mu['w']", parameter=1),
        hlo("tokens", "parameter", shape="s32[64]", op_name="batch", parameter=2),
        hlo("act", "add", shape="bf16[64,32]", op_name="jit(step)/jvp()/mlp/add"),
        hlo("tmp", "add", shape="bf16[64,16]", op_name="jit(step)/jvp()/mlp/add"),
        hlo(
            "grad",
            "dot",
            "act w",
            shape="bf16[16,32]",
            op_name="jit(step)/transpose(jvp())/mlp/dot",
        ),
    ],
    [
        argument("w", 1024, 2),
        argument("m", 2048, 3),
        argument("tokens", 256, 4),
        buffer("act", 4096, 0, (0, 9)),
        buffer("tmp", 2048, 4096, (1, 3)),
        buffer("grad", 1024, 4096, (5, 9)),  # where tmp was
        buffer("grad2", 1024, 4096, (6, 8)),  # an update in place: the same memory
        buffer("late", 3072, 5120, (5, 6)),
    ],
    argument_bytes=3328,
    temp_bytes=8448,
    output_bytes=100,
)


def test_the_heap_is_followed_point_by_point():
    (heap,) = heaps_of(STEP.buffers)
    # act alone, with tmp, alone, with grad and late, with grad
    assert heap.live_bytes.tolist() == [4096, 6144, 6144, 4096, 4096, 8192, 5120, 5120, 5120, 0]
    assert heap.peak == 5
    assert sorted(heap.at_peak["op"]) == ["act", "grad", "late"]


def test_the_peak_is_explained_to_the_byte():
    found = memory(STEP)
    sizes = dict(zip(found.table["content"], found.table["size_bytes"], strict=True))
    assert sizes == {
        "saved activations": 4096,  # written in the forward pass, there in the backward
        "temporary": 3072,  # no such instruction is known
        "optimizer state": 2048,
        "weights": 1024,
        "gradients": 1024,
        "gaps and rounding": 256,  # 8448 − 4096 − 1024 − 3072
        "inputs": 256,
        "results that reuse no argument": 100,
    }
    figures = {metric.metric: metric.value for metric in found.headline}
    assert figures["program_peak"] == 3328 + 8448 + 100 == found.table["size_bytes"].sum()
    assert figures["allocator_peak"] is None
    assert "at point 5 of 9" in found.notes[0]


def from_a_cache(trace):
    """The trace as a profile has it of an executable from a compilation cache: no buffer's life."""
    return dataclasses.replace(
        trace, buffers=trace.buffers.assign(live_from=-1, live_to=-1, trace=-1)
    )


def test_temporaries_without_lives_are_one_row_and_no_kind_of_them_is_told():
    found = memory(from_a_cache(STEP))
    assert dict(zip(found.table["content"], found.table["size_bytes"], strict=True)) == {
        "temporaries, contents not recorded": 8448,
        "optimizer state": 2048,
        "weights": 1024,
        "inputs": 256,
        "results that reuse no argument": 100,
    }
    assert found.headline == memory(STEP).headline  # sizes are as exact as ever
    assert "compilation cache" in found.notes[0]
    assert "JAX_ENABLE_COMPILATION_CACHE=false" in found.notes[0]


def test_a_program_without_temporaries_has_no_untold_ones():
    ops = [hlo("w", "parameter", shape="bf16[16,32]", op_name="params['w']", parameter=0)]
    found = memory(planned(ops, [argument("w", 1024, 2)], argument_bytes=1024))
    assert found.table["content"].tolist() == ["weights"]


@pytest.mark.parametrize("sides", [(True, False), (False, True), (True, True)])
def test_what_a_side_does_not_tell_has_not_come_or_gone(sides):
    """The same program, cold and from a cache: not one byte of it has changed."""
    base, new = (from_a_cache(STEP) if is_cached else STEP for is_cached in sides)
    found = compare(base, new)
    assert found.buffers.empty
    (note,) = [note for note in found.notes if "not compared, only its size" in note]
    names = [name for name, is_cached in zip(("base", "new"), sides, strict=True) if is_cached]
    assert f"of {' and '.join(names)} the profile tells no life" in note


def test_a_change_of_untold_temporaries_is_that_of_their_size():
    larger = dataclasses.replace(STEP, modules=STEP.modules.assign(temp_bytes=9000))
    changed = memory_difference(STEP, from_a_cache(larger))
    assert changed["content"].tolist() == ["temporaries, contents not recorded"]
    assert changed["change_bytes"].tolist() == [9000 - 8448]
    assert not any("only its size" in note for note in compare(STEP, larger).notes)


OFFLOADED = planned(
    [
        hlo("w", "parameter", shape="bf16[16,32]", op_name="params['w']", parameter=0),
        hlo("m", "parameter", shape="f32[16,32]", op_name="opt_state[0].mu['w']", parameter=1),
        hlo("act", "add", shape="bf16[64,32]", op_name="jit(step)/jvp()/mlp/add"),
    ],
    [
        argument("w", 1024, 2),
        argument("m", 2048, 3) | {"color": 5},
        buffer("act", 4096, 0, (0, 9)),
        buffer("kept", 5000, 0, (2, 7), allocation=4, color=5),
    ],
    argument_bytes=1024,
    temp_bytes=4096,
    host_argument_bytes=2048,
    host_output_bytes=2048,
    host_alias_bytes=2048,
    host_temp_bytes=5000,
)


def test_what_lies_on_the_host_stands_beside_the_peak():
    found = memory(OFFLOADED)
    figures = {metric.metric: metric.value for metric in found.headline}
    assert figures["program_peak"] == 1024 + 4096 == found.table["size_bytes"].sum()
    assert figures["host_memory"] == 2048 + 5000
    assert (figures["host_argument"], figures["host_temp"]) == (2048, 5000)
    assert "optimizer state" not in set(found.table["content"])


def test_a_program_without_host_memory_has_no_figure_of_it():
    assert "host_memory" not in {metric.metric for metric in memory(STEP).headline}


def test_state_that_moves_to_the_host_is_no_growth():
    here = {"argument_bytes": 3072, "host_argument_bytes": 0, "host_output_bytes": 0}
    at_home = dataclasses.replace(
        OFFLOADED,
        modules=OFFLOADED.modules.assign(**here, host_alias_bytes=0, host_temp_bytes=0),
        buffers=OFFLOADED.buffers[OFFLOADED.buffers["op"].ne("kept")].assign(color=0),
    )
    changes = memory_changes(at_home, OFFLOADED).set_index("part")["change_bytes"]
    assert changes["peak"] == changes["argument"] == -2048
    assert changes["host"] == 2048 + 5000
    assert memory_difference(at_home, OFFLOADED)["change_bytes"].sum() == -2048


def test_the_allocator_stands_beside_the_plan():
    row = {name: -1 for name in ALLOCATIONS.names} | {
        "host": "a", "allocator": "GPU_0_bfc", "device": 0, "is_free": False, "op": "",
        "region_type": "", "shape": "", "peak_bytes": 12_000,
    }  # fmt: skip
    host = row | {"allocator": "xla_gpu_host_bfc", "device": -1, "peak_bytes": 99_000}
    trace = dataclasses.replace(STEP, allocations=ALLOCATIONS.frame([row, host]))
    assert memory(trace).headline[-1].value == 12_000


@pytest.mark.parametrize("buffers", [True, False])
def test_a_profile_without_a_plan_says_so(buffers):
    empty = traced([kernel("k", 0, 10)], [hlo("k", "add", shape="f32[8]")])
    trace = empty if buffers else dataclasses.replace(STEP, buffers=BUFFERS.frame())
    found = memory(trace)
    assert found.table.empty
    assert found.headline[0].value is None
    assert found.notes[0].startswith("none in this trace")


def compiled(dense):
    """A step that holds 3 GiB, and `dense` arrays of 4 GiB in which rows stand for each expert."""
    ragged = BACKWARD + "experts/ragged_dot_general"
    names = [f"select.{place}" for place in range(dense)]
    ops = [
        hlo("rows", "add", shape="bf16[32768,1024]", op_name=BACKWARD + "permute/add"),
        *(hlo(name, "select", shape="bf16[64,32768,1024]", op_name=ragged) for name in names),
        hlo("out", "add", shape="bf16[49152,32768]", op_name="jit(step)/jvp()/head/add"),
    ]
    dense_buffers = [
        buffer(name, 4 * GIB, (3 + 4 * place) * GIB, (1, 5)) for place, name in enumerate(names)
    ]
    temp = (3 + 4 * dense) * GIB
    return planned(ops, [buffer("out", 3 * GIB, 0, (0, 5)), *dense_buffers], temp_bytes=temp)


def test_new_dense_buffers_of_a_ragged_product_stand_on_top():
    """12 × 64 · 32768 · 1024 · 2 B = 12 × 4 GiB."""
    table = memory_difference(compiled(dense=2), compiled(dense=14))
    top = table.iloc[0]
    assert top["content"] == "dense fallback of ragged dot"
    assert top["change_bytes"] == 48 * GIB
    assert (top["base_buffers"], top["new_buffers"]) == (2, 14)
    assert top["shape"] == "bf16[64,32768,1024]"


def test_what_a_program_holds_is_no_difference_from_itself():
    assert memory_difference(STEP, STEP).empty
    there, back = (memory_difference(a, b) for a, b in ((STEP, compiled(1)), (compiled(1), STEP)))
    assert sorted(there["change_bytes"]) == sorted(-back["change_bytes"])


@pytest.mark.parametrize("op", [r"select\.\d", "out", ".*"])
def test_rules_of_one_side_are_no_difference_in_memory(op):
    """Neither the part of a buffer nor what of its kind follows from the part."""
    rules = NameRules("names.yml", (NameRule("dense_mlp", op=op),))
    step = compiled(2)
    assert compare(with_names(step, rules), step).buffers.empty
    grown = compare(with_names(step, rules), compiled(3)).buffers
    assert grown[["component", "change_bytes"]].values.tolist() == [["", 4 * GIB]]
    same = compare(with_names(step, rules), with_names(compiled(3), rules)).buffers
    assert (same["component"] != "").all()
