"""Any function of this process planned for H100s that are not there, against sums by hand."""

from __future__ import annotations

import functools
import importlib.metadata
import re
import subprocess
import sys
from math import isnan
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

import moeprof
from moeprof.errors import CompileError, SelectionError
from moeprof.hlo.instruction import parse_groups
from moeprof.projector.any_step.program import axes_of_groups, axes_of_pairs
from moeprof.projector.any_step.result import content_of

PAGE = Path(__file__).parents[3] / "docs" / "python.md"
P = PartitionSpec
TWO_AXES = AbstractMesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
TOKENS, WIDTH, FFN = 512, 1024, 2048
BF16 = 2


def _shape(*dims, dtype=jnp.bfloat16, sharding=None):
    return jax.ShapeDtypeStruct(dims, dtype, sharding=sharding)


def _sgd(params, x, unused, rate):
    def loss(params):
        return jnp.mean((x @ params["kernel"]).astype(jnp.float32) ** 2)

    slopes = jax.grad(loss)(params)
    return jax.tree.map(lambda p, g: (p - rate * g).astype(p.dtype), params, slopes)


@pytest.fixture(scope="module")
def fsdp(plugin):
    """A plain function; its weight and its batch split over 8 devices by PartitionSpecs."""
    return moeprof.plan(
        _sgd,
        {"kernel": _shape(WIDTH, FFN)},
        _shape(TOKENS, WIDTH),
        _shape(7, 7),
        0.1,
        mesh={"fsdp": 8},
        in_shardings=({"kernel": P("fsdp")}, P("fsdp"), None, None),
        out_shardings={"kernel": P("fsdp")},
        donate_argnums=0,
    )


def test_bytes_of_split_and_donated_arguments_are_those_by_hand(fsdp):
    weight, batch, rate = BF16 * WIDTH * FFN // 8, BF16 * TOKENS * WIDTH // 8, 4
    assert (fsdp.devices, dict(fsdp.axes)) == (8, {"fsdp": 8})
    assert fsdp.arguments_bytes == weight + batch + rate
    assert (fsdp.outputs_bytes, fsdp.aliased_bytes) == (weight, weight)
    assert fsdp.constants_bytes == 0
    assert fsdp.peak_bytes == fsdp.arguments_bytes + fsdp.temporaries_bytes
    table = fsdp.arguments.set_index("argument")
    assert table["size_bytes"].to_dict() == {
        "params['kernel']": weight,
        "x": batch,
        "unused": 0,
        "rate": rate,
    }
    assert table.loc["params['kernel']", ["split", "is_donated"]].tolist() == ["8,1", True]
    assert not table.loc["unused", "is_passed"]


def test_every_byte_of_the_peak_is_of_a_kind_of_tensor(fsdp):
    assert int(fsdp.memory["bytes"].sum()) == fsdp.peak_bytes
    assert int(fsdp.buffers["size_bytes"].sum()) == fsdp.peak_bytes
    kinds = fsdp.memory.set_index("content")["bytes"]
    assert kinds["weights"] == BF16 * WIDTH * FFN // 8
    if jax.__version_info__ >= (0, 10):  # before, the compiler names nothing that it gathers
        assert kinds["gathered weights"] == BF16 * WIDTH * FFN
    assert kinds["argument, kind not known"] == BF16 * TOKENS * WIDTH // 8 + 4
    assert fsdp.largest_buffers["size_bytes"].iloc[0] == BF16 * WIDTH * FFN


def test_work_and_what_crosses_the_links_are_those_by_hand(fsdp):
    product = 2 * (TOKENS // 8) * WIDTH * FFN
    assert fsdp.flops == fsdp.known_flops == 2 * product  # forward, and the weight's gradient
    sent = fsdp.collectives.set_index("opcode")
    assert sorted(sent.index) == ["all-gather", "reduce-scatter"]
    assert sent["bytes"].tolist() == [BF16 * WIDTH * FFN] * 2
    assert sent["axis"].tolist() == ["fsdp"] * 2
    assert sent["group_size"].tolist() == [8, 8]
    assert fsdp.collective_bytes == 2 * BF16 * WIDTH * FFN * 7 / 8
    roof = fsdp.roofline
    assert roof.compute_s == pytest.approx(2 * product / 989.4e12)
    assert roof.collectives_s == pytest.approx(fsdp.collective_bytes / 450e9)
    assert roof.at_least_s == roof.seconds == roof.collectives_s  # the wire takes longer here
    assert roof.at_most_s == pytest.approx(
        roof.collectives_s / 0.8 + roof.memory_s / 0.88  # every op here is bound by memory
    )


def test_what_is_not_known_is_named_and_what_was_taken_is_said(fsdp):
    assert fsdp.unknowns["what"].tolist() == ["autotuner's workspace"]
    assert fsdp.unknowns["count"].tolist() == [2]
    notes = " ".join(fsdp.notes)
    assert "the step does not use are no part of its program, and in no figure: unused" in notes
    assert "mem_fraction not given, so taken: 0.93" in notes
    assert fsdp.fits
    assert fsdp.verdict == "fits"
    assert fsdp.left_bytes == fsdp.pool_bytes - fsdp.peak_range[1]
    text = str(fsdp)
    for part in ("_sgd for 8 × NVIDIA H100", "mesh fsdp 8", "target h100_sxm", "536.9 MFLOP"):
        assert part in text
    assert "all-gather over fsdp (8)  ×1  4.000 MiB" in text
    assert repr(fsdp).startswith("<moeprof plan of _sgd for 8 × NVIDIA H100 SXM5 80GB: fits, ")


TABLE = np.arange(WIDTH * 1024, dtype=np.float32).reshape(WIDTH, 1024) / WIDTH


def _on_each(weights, x):
    """Three layers of a loop, a sum over an axis, a call nobody knows, a product with a constant.

    On each device by itself, so that no sharding is left to the compiler.
    """
    x, _ = jax.lax.scan(lambda x, weight: (jnp.tanh(x @ weight), None), x, weights)
    summed = jax.lax.psum(x, "model")
    called = jax.ffi.ffi_call("users_own_call", jax.ShapeDtypeStruct(x.shape, x.dtype))(summed)
    return called, x.astype(jnp.float32) @ TABLE


@functools.partial(jax.jit, static_argnums=2)
def _scanned(weights, x, how):
    assert how == "scan"
    split = {"in_specs": (P(), P("data")), "out_specs": (P("data"), P("data"))}
    return jax.shard_map(_on_each, mesh=TWO_AXES, check_vma=False, **split)(weights, x)


@pytest.fixture(scope="module")
def scanned(plugin):
    """A jitted function of arguments with shardings over an abstract mesh, and a static one."""
    weights = _shape(3, WIDTH, WIDTH, sharding=NamedSharding(TWO_AXES, P()))
    x = _shape(TOKENS, WIDTH, sharding=NamedSharding(TWO_AXES, P("data")))
    return moeprof.plan(_scanned, weights, x, "scan", devices=8, mem_fraction=0.5)


def test_a_loop_counts_as_often_as_it_runs_and_a_constant_lies_on_every_device(scanned):
    rows = TOKENS // 2
    assert scanned.arguments_bytes == BF16 * (3 * WIDTH * WIDTH + rows * WIDTH)
    assert scanned.arguments["argument"].tolist() == ["weights", "x"]
    assert scanned.constants_bytes >= TABLE.nbytes
    assert int(scanned.memory["bytes"].sum()) == scanned.peak_bytes
    assert "the function closes over; give those as arguments" in " ".join(scanned.notes)
    products = scanned.ops[scanned.ops["flops"].gt(0)].set_index("dtype")
    assert products["runs"].to_dict() == {"bf16": 3, "f32": 1}
    product = 2 * rows * WIDTH * WIDTH
    assert products["flops"].to_dict() == {"bf16": product, "f32": product}
    assert scanned.known_flops == 4 * product
    assert scanned.pool_bytes == scanned.hardware.hbm_bytes // 2


def test_a_sum_inside_shard_map_is_over_its_axis(scanned):
    size = BF16 * (TOKENS // 2) * WIDTH
    columns = ["opcode", "axis", "group_size", "runs", "bytes", "sent_bytes"]
    found = scanned.collectives[columns].values.tolist()
    assert found == [["all-reduce", "model", 4, 1, size, size * 2 * 3 / 4]]


def test_a_custom_call_that_nobody_knows_is_named_and_makes_no_sum_of_flops(scanned):
    calls = scanned.unknowns[scanned.unknowns["what"].eq("custom call")]
    assert calls[["name", "count"]].values.tolist() == [["users_own_call", 1]]
    assert scanned.flops is None
    row = scanned.ops[scanned.ops["opcode"].eq("users_own_call")].iloc[0]
    assert isnan(row["flops"])
    assert row["bytes"] == 2 * BF16 * (TOKENS // 2) * WIDTH
    assert scanned.roofline.band[1] is None
    assert "users_own_call" in scanned.roofline.reason
    assert "products in f32" in scanned.roofline.reason  # whether these are TF32 nothing tells
    assert "Work at least" in str(scanned)
    assert "custom call: users_own_call ×1" in str(scanned)


def test_the_example_of_the_python_page_prints_what_it_shows(plugin, tmp_path):
    page = PAGE.read_text("utf-8")
    shown = re.search(
        r"```python\n(import jax\n[^`]*?moeprof\.plan\(.*?)```\n\n```\n(.*?)```", page, re.S
    )
    (tmp_path / "train_plan.py").write_text(shown[1], "utf-8")
    done = subprocess.run(
        [sys.executable, "train_plan.py"],
        cwd=tmp_path,
        env={"PYTHONPATH": ":".join(sys.path), "PATH": "/usr/bin:/bin", "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=True,
    )
    printed = done.stdout.replace(f"{tmp_path}/", "")
    assert "arguments                         44.00 MiB" in printed
    assert "Work 9.896 TFLOP" in printed  # 3 passes over 16 layers and the head, by hand
    if f"jaxlib {importlib.metadata.version('jaxlib')} " in shown[2]:  # what is laid out differs
        assert printed == shown[2]


def test_without_a_mesh_every_device_does_the_whole_step(plugin):
    x = np.ones((TOKENS, WIDTH), np.float32)
    found = moeprof.plan(lambda x, *, y: x @ y.T, x, kwargs={"y": jnp.asarray(x)}, devices=16)
    assert found.arguments["argument"].tolist() == ["x", "y"]
    assert found.arguments_bytes == 2 * x.nbytes
    assert found.outputs_bytes == 4 * TOKENS * TOKENS
    assert found.flops == 2 * TOKENS * TOKENS * WIDTH
    assert found.collectives.empty
    assert found.collective_bytes == 0
    assert any("no mesh was given" in note for note in found.notes)
    assert "Collectives: none" in str(found)


def test_a_sum_over_two_hosts_takes_the_network_between_them(plugin):
    x = _shape(1024, WIDTH, dtype=jnp.float32)
    options = {"in_shardings": P("data"), "out_shardings": P()}
    found = moeprof.plan(lambda x: jnp.sum(x, 0), x, mesh={"data": 16}, **options)
    (row,) = found.collectives.to_dict("records")
    size = 4 * WIDTH
    assert (row["opcode"], row["axis"], row["bytes"]) == ("all-reduce", "data", size)
    assert row["sent_bytes"] == 2 * size * 15 / 16
    # each of a host's 8 devices receives its share of the half that lies on the other host, twice
    assert row["roofline_s"] == pytest.approx(
        max(2 * size / 2 / 8 / 50e9, 2 * size * 15 / 16 / 450e9)
    )
    assert found.flops == 0
    assert found.unknowns.empty


def test_a_branch_that_nothing_counts_is_in_no_sum_and_named(plugin):
    def step(x, choice):
        return jax.lax.cond(choice > 0, lambda x: x @ x.T, lambda x: jnp.zeros((256, 256)), x)

    found = moeprof.plan(step, _shape(256, 512, dtype=jnp.float32), _shape(dtype=jnp.int32))
    assert found.devices == 1
    assert (found.flops, found.known_flops) == (None, 0)
    assert "in a branch or a loop" in found.unknowns["missing"].iloc[0]
    assert "branches or loops without a count" in found.roofline.reason


def _printing(x):
    jax.debug.print("{}", x.sum())
    return x


ONE_AXIS = AbstractMesh((8,), ("all",), axis_types=(AxisType.Auto,))
_split_in_eight = jax.jit(lambda x: x, in_shardings=NamedSharding(ONE_AXIS, P("all")))


def _of_two_meshes():
    return [
        _shape(8, 8, sharding=NamedSharding(TWO_AXES, P("data"))),
        _shape(8, 8, sharding=NamedSharding(ONE_AXIS, P("all"))),
    ]


X = _shape(8, 16)


@pytest.mark.parametrize(
    ("step", "args", "options", "kind", "said"),
    [
        (
            _sgd,
            (X,),
            {"devices": 64, "mesh": {"data": 4, "model": 8}},
            SelectionError,
            r"a mesh of 64 devices, found data 4 × model 8, which is 32\. Give devices=32",
        ),
        (_sgd, (X,), {"mesh": {"data": "8"}}, SelectionError, "expected mesh to be a mesh of JAX"),
        (_sgd, (X,), {"mesh": 8}, SelectionError, "sizes by the names of its axes"),
        (_sgd, (X,), {"mesh": {"data": 12}}, SelectionError, "choose 8 or 16"),
        (_sgd, (X,), {"hardware": "h100"}, SelectionError, "h100_sxm"),
        (_sgd, (X,), {"hardware": "tpu_v5p"}, SelectionError, "cannot be had without the device"),
        (_sgd, (X,), {"mem_fraction": 93}, SelectionError, "above 0 and at most 1, found 93"),
        (_sgd, (X,), {"devices": 0}, SelectionError, "for 0 devices: expected 1 to 8"),
        (_sgd, (X,), {"devices": "8"}, SelectionError, "expected devices to be a whole number"),
        ("step", (X,), {}, SelectionError, "expected a function first, found 'step'"),
        (lambda a, b: a, _of_two_meshes(), {}, SelectionError, "over one mesh, found data 2"),
        (jax.jit(_sgd), (X,), {"donate_argnums": 0}, SelectionError, r"in its own jax\.jit"),
        (lambda: 1.0, (), {"mesh": {"d": 8}}, SelectionError, "found no array"),
        (lambda x: x @ x, (X,), {}, CompileError, r"plan <lambda>: TypeError: .*any_step\.py:\d+"),
        (_printing, (X,), {"mesh": {"d": 8}}, CompileError, r"calls back .*jax\.debug\.print"),
        (_sgd, (X,), {"static_argnums": "x"}, CompileError, "refuses its options"),
        (
            _split_in_eight,
            (X,),
            {"mesh": {"data": 16}},
            SelectionError,
            "expected shardings over the mesh data 16, found 8 devices",
        ),
        (
            _split_in_eight,
            (X,),
            {"devices": 16},
            SelectionError,
            "found all 8, which is 8|over the mesh devices 16, found 8 devices",
        ),
        (
            lambda x: x,
            (_shape(9, 9),),
            {"mesh": {"d": 8}, "in_shardings": P("d")},
            CompileError,
            "size is 9|given the sharding",
        ),
    ],
)
def test_what_cannot_be_planned_is_refused_in_one_line(plugin, step, args, options, kind, said):
    with pytest.raises(kind, match=said) as error:
        moeprof.plan(step, *args, **options)
    assert "\n" not in str(error.value)


def test_shardings_over_axes_of_other_names_are_refused_where_a_program_has_their_names(plugin):
    if jax.__version_info__ < (0, 10):  # it has how arrays are split, and any axes will do
        assert moeprof.plan(_split_in_eight, X, mesh={"data": 8}).arguments_bytes == BF16 * 16
        return
    said = "expected shardings over the mesh data 8, found others: .*'all': 8"
    with pytest.raises(CompileError, match=said):
        moeprof.plan(_split_in_eight, X, mesh={"data": 8})


def test_the_mesh_of_a_functions_own_shardings_is_taken_where_none_is_given(plugin):
    if jax.__version_info__ < (0, 10):  # a program does not say its mesh
        with pytest.raises(SelectionError, match=r"found 8 devices\. Give the mesh"):
            moeprof.plan(_split_in_eight, X)
        return
    found = moeprof.plan(_split_in_eight, X)
    assert dict(found.axes) == {"all": 8}
    assert found.arguments_bytes == BF16 * 8 * 16 // 8


def test_groups_of_devices_lie_along_the_axes_of_a_mesh():
    axes = {"data": 2, "one": 1, "model": 4}
    assert axes_of_groups(parse_groups("{{0,1,2,3},{4,5,6,7}}"), axes) == "model"
    assert axes_of_groups(parse_groups("{{0,4},{1,5},{2,6},{3,7}}"), axes) == "data"
    assert axes_of_groups(parse_groups("{{7,6,5,4,3,2,1,0}}"), axes) == "data × model"
    assert axes_of_groups(parse_groups("{{0,1},{2,3},{4,5},{6,7}}"), axes) == ""
    assert axes_of_pairs(((0, 1), (1, 2), (2, 3), (3, 0)), axes) == "model"
    assert axes_of_pairs(((0, 4), (4, 0)), axes) == "data"
    assert axes_of_pairs(((0, 9),), axes) == ""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("state.params['layers']['kernel']", "weights"),
        ("weights[0]", "weights"),
        ("state.opt_state[0].mu['kernel']", "optimizer state"),
        ("x", "argument, kind not known"),
        ("reparametrised", "argument, kind not known"),
    ],
)
def test_the_kind_of_an_argument_is_told_by_its_path_alone(path, kind):
    assert content_of(path, True) == kind
    assert content_of(path, False) == "inputs"


def test_partition_specs_in_the_functions_own_jit_are_taken_or_told(plugin):
    step = jax.jit(lambda x: x + 1, in_shardings=P("data"))
    try:
        told = moeprof.plan(step, _shape(8, 16), mesh={"data": 8}).arguments_bytes
    except CompileError as error:  # as jax 0.10 does
        told = str(error)
    assert told == BF16 * 16 or "the function unjitted and in_shardings here" in str(told)


def test_a_function_without_arguments_is_over_the_mesh_that_it_constrains_its_results_to(plugin):
    over = Mesh(np.array(jax.devices()[:8]), ("x",))

    @jax.jit
    def init():
        return jax.lax.with_sharding_constraint(jnp.ones((64, 32)), NamedSharding(over, P("x")))

    found = moeprof.plan(init, mesh={"x": 8})
    assert (found.devices, found.arguments_bytes) == (8, 0)
    assert found.outputs_bytes == 4 * 64 * 32 // 8
