"""The script as a whole: what it holds, and that it runs."""

import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from builders.translated import program
from builders.work import hlo, kernel, traced

from moeprof.errors import ReplayError, SelectionError
from moeprof.hlo.shape import parse_shape
from moeprof.replay.script import script_of
from moeprof.replay.target import Target, replayed, target_of
from moeprof.replay.terms import array_of, jnp_type


def target(op, **more):
    said = {"platform": "cpu", "device": "", "jax_version": "0.1", "notes": ()}
    given = {"module": 1, "op_name": "", "median_ns": 1000, "calls": 3} | said | more
    return Target(op=op, **given)


def loaded(text):
    names = {"__name__": "script"}
    exec(text, names)
    return names


def lowered(function, *args):
    return jax.jit(function).lower(*args).compiler_ir("hlo").as_serialized_hlo_module_proto()


def test_a_script_runs_and_reports_its_time(tmp_path):
    _, ops = program(lowered(lambda x, w: x @ w, jnp.ones((800, 900)), jnp.ones((900, 700))))
    (dot,) = (op.name for op in ops.ops.values() if op.opcode == "dot")
    script = script_of(ops, target(dot), 1, "--xla_dump_to=/x")
    assert script.input_bytes == 4 * (800 * 900 + 900 * 700)
    assert "xla_dump" not in script.text
    file = tmp_path / "again.py"
    file.write_text(script.text)
    found = replayed(file)
    assert found.platform == "cpu"
    assert found.ratio == pytest.approx(found.median_ns / 1000)
    assert (0 < found.empty_call_ns < found.median_ns, found.remark) == (True, "")


def test_what_takes_no_longer_than_its_launch_has_no_ratio(tmp_path):
    _, ops = program(lowered(lambda x: -x, jnp.ones(8)))
    (op,) = (op.name for op in ops.ops.values() if op.opcode == "negate")
    file = tmp_path / "again.py"
    file.write_text(script_of(ops, target(op), 1, "").text)
    found = replayed(file)
    assert found.ratio is None
    assert found.remark == (
        f"an empty call takes {found.empty_call_ns} ns here: too short to be timed, no ratio"
    )


@pytest.mark.parametrize(
    ("platform", "devices", "is_told"), [("cpu", 8, True), ("cpu", 1, False), ("gpu", 8, False)]
)
def test_devices_that_share_cores_are_told(platform, devices, is_told):
    _, ops = program(lowered(lambda x: jnp.exp(x), jnp.ones(8)))
    (op,) = (op.name for op in ops.ops.values() if op.opcode == "exponential")
    notes = script_of(ops, target(op, platform=platform), devices, "").notes
    said = "8 devices of the trace share the cores of their hosts; here one runs alone"
    assert (said in notes) == is_told


def test_other_devices_have_no_ratio(tmp_path):
    _, ops = program(lowered(lambda x: jnp.exp(x), jnp.ones(8)))
    (op,) = (op.name for op in ops.ops.values() if op.opcode == "exponential")
    file = tmp_path / "again.py"
    file.write_text(script_of(ops, target(op, platform="gpu", device="H100"), 1, "").text)
    done = subprocess.run([sys.executable, file], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1])["ratio"] is None
    assert "other devices, or no traced time: no ratio" in done.stdout


def test_indices_stay_within_their_arrays():
    """Rows of a [5, 3] array: indices below 5, also through the wrapping of negative ones."""
    _, ops = program(lowered(lambda x, i: x[i], jnp.ones((5, 3)), jnp.zeros(64, jnp.int32)))
    (gather,) = (op.name for op in ops.ops.values() if op.opcode == "gather")
    names = loaded(script_of(ops, target(gather), 1, "").text)
    indices = next(a for a in names["inputs"](0) if a.dtype == jnp.int32)
    assert int(indices.max()) == 4


def test_inputs_and_results_lie_in_memory_as_in_the_program():
    """A copy of f32[2,3] stored by column into one stored by row turns [3, 2] into [2, 3]."""
    shape = {"shape": "f32[2,3]", "size_bytes": 24}
    trace = traced(
        [kernel("copied", 0, 1)],
        [
            hlo("x", "parameter", **shape, attributes="layout=0,1"),
            hlo("copied", "copy", "x", **shape),
        ],
        {0: (0, 1)},
    )
    module = int(trace.hlo_ops["module"].iloc[0])
    names = loaded(script_of(trace.programs[module], target("copied"), 1, "").text)
    (x,) = names["inputs"](0)
    assert x.shape == (3, 2)
    np.testing.assert_array_equal(names["run"](x), x.T)


@pytest.mark.parametrize(
    ("opcode", "more", "out"),
    [
        ("all-gather", {"shape": "f32[8]", "details": "dimensions=0"}, (8,)),
        ("all-to-all", {"shape": "f32[4]", "details": "dimensions=0"}, (4,)),
        ("collective-permute", {"shape": "f32[4]", "source_target_pairs": "{{0,1},{1,0}}"}, (4,)),
    ],
)
def test_a_collective_runs_on_a_group_of_devices(tmp_path, opcode, more, out):
    ops = [
        hlo("x", "parameter", shape="f32[4]", size_bytes=16),
        hlo("moved", opcode, "x", size_bytes=16, replica_groups="{{0,1}}", **more),
    ]
    trace = traced([kernel("moved", 0, 1)], ops, {0: (0, 1)})
    module = int(trace.hlo_ops["module"].iloc[0])
    script = script_of(trace.programs[module], target("moved"), 2, "")
    assert script.devices == 2
    check = "call, operands, devices = prepared(); print(len(devices), call(*operands).shape)"
    file = tmp_path / "again.py"
    file.write_text(script.text.replace("    sys.exit(main())", f"    {check}"))
    done = subprocess.run([sys.executable, file], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"2 {(2, *out)}"


def test_the_costliest_op_of_a_scope_is_taken():
    ops = [
        hlo("a.1", "dot", op_name="jit(f)/moe/experts/dot"),
        hlo("a.2", "dot", op_name="jit(f)/moe/experts/dot"),
    ]
    trace = traced(
        [kernel("a.1", 0, 2), kernel("a.2", 2, 5), kernel("a.2", 7, 3)], ops, {0: (0, 9)}
    )
    found = target_of(trace, "moe/experts")
    assert (found.op, found.median_ns, found.calls) == ("a.2", 4, 2)
    assert found.notes == ("the costliest of 2 ops of 'moe/experts'",)
    assert target_of(trace, "a.1").median_ns == 2
    with pytest.raises(SelectionError, match=r"2 ops have 'a\.' in their name, such as: a.2, a.1"):
        target_of(trace, "a.")
    with pytest.raises(SelectionError, match=r"is called 'b'; the costliest are: a\.2, a\.1"):
        target_of(trace, "b")


def test_devices_that_run_another_kernel_make_no_call_longer():
    """Of 100 ns on one device and 120 + 10 ns on the other, a call takes 115 ns."""
    work = [
        kernel("a", 0, 100, "gemm_64x64"),
        kernel("a", 0, 120, "gemm_splitk", device=1),
        kernel("a", 120, 10, "gemm_reduce", device=1),
    ]
    found = target_of(traced(work, [hlo("a", "custom-call")], {0: (0, 200)}), "a")
    assert (found.median_ns, found.calls, found.notes) == (115, 2, ())


def test_what_a_script_cannot_make_is_refused():
    assert jnp_type(array_of(parse_shape("bf16[2,3]"))) == "jnp.bfloat16"
    for shape in map(parse_shape, ("f32[<=8]", "f32[?]", "token[]", "(f32[2])", "s4[8]")):
        with pytest.raises(ReplayError, match="an array of a shape that a script can make"):
            array_of(shape)
