"""Real compilations for H100s that are not there, against sizes that are added up by hand."""

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pandas as pd
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding

import moeprof
from moeprof.errors import CompileError, SelectionError, SpecError, TraceError
from moeprof.model.layout import BATCH, Job
from moeprof.model.train import (
    OptimizerSettings,
    TrainState,
    adamw,
    make_step,
    state_specs,
    weight_shapes,
)
from moeprof.projector import compiled
from moeprof.projector.compiled import load_target
from moeprof.projector.compiled import plan as plans_module
from moeprof.projector.compiled.bundled import compile_bundled
from moeprof.projector.compiled.plan import plan
from moeprof.projector.compiled.result import LaidOut, is_laid_out, memory_plan_difference
from moeprof.projector.setting import Precision, Setting
from moeprof.specs.hardware import load_hardware
from moeprof.specs.model import GqaSpec, MlaSpec, ModelSpec
from moeprof.specs.parameters import parameters, partition
from moeprof.specs.plan import AXES, ParallelPlan
from moeprof.specs.strategy import parse_strategy

EXAMPLE = Path(__file__).parents[3] / "examples" / "plan_memory.py"
COMMON = {"layers": 2, "hidden": 256, "experts": 8, "top_k": 2, "moe_ffn": 128, "vocab": 1024}
GQA = ModelSpec(heads=2, attention=GqaSpec(2, 64), **COMMON)
MLA = ModelSpec(
    heads=2,
    attention=MlaSpec(q_lora_rank=64, kv_lora_rank=32, nope_dim=32, rope_dim=16, value_dim=32),
    dense_layers=1,
    dense_ffn=512,
    **COMMON,
)
MASKED = "sparse-ragged-dot"
CASES = {
    "dense-cf1.25": (MLA, ParallelPlan(2, 1, 2), 1),
    "sparse-ragged-dot": (GQA, ParallelPlan(1, 1, 4), 1),
    "sparse-gmm": (MLA, ParallelPlan(1, 2, 8), 2),
    "sparse-gmm-deepep": (GQA, ParallelPlan(1, 2, 4), 2),
}


def _setting(strategy, **changes) -> Setting:
    model, degrees, pdbs = CASES[strategy]
    values = {
        "model": model,
        "plan": degrees,
        "strategy": parse_strategy(strategy),
        "hardware": load_hardware("h100_sxm"),
        "sequence": 512,
        "pdbs": pdbs,
        "framework": "bundled",
    }
    return Setting(**{**values, **changes})


@pytest.fixture(scope="module")
def plans(plugin):
    return {
        strategy: compile_bundled(_setting(strategy), without_triton=strategy == MASKED)
        for strategy in CASES
    }


def test_the_arena_without_tritons_products_is_told_beside_it(plans):
    """What is masked per expert is not fused with a product then."""
    plan = plans[MASKED]
    assert plan.library_temp_bytes not in (None, plan.memory.temp_bytes)
    least, most = plan.temp_range_bytes
    assert most - least == abs(plan.library_temp_bytes - plan.memory.temp_bytes)
    assert {each.library_temp_bytes for each in plans.values() if each is not plan} == {None}


def _held_bytes(setting: Setting) -> int:
    """Weights and two moments in bfloat16 as the plan splits them, biases, a counter, the batch."""
    trained = [p for p in parameters(setting.model) if p.is_trained]
    weights = 0
    for parameter in trained:
        axes = tuple(axis for split in partition(parameter, setting.plan) for axis in split)
        weights += parameter.size // setting.plan.degree(axes)
    biases = setting.model.moe_layers * setting.model.experts
    return 3 * 2 * weights + 4 * biases + 4 + 4 * setting.pdbs * (setting.sequence + 1)


@pytest.mark.parametrize("strategy", CASES)
def test_arguments_equal_the_closed_sum_to_the_byte(plans, strategy):
    assert plans[strategy].memory.argument_bytes == _held_bytes(_setting(strategy))


@pytest.mark.parametrize("strategy", CASES)
def test_every_byte_is_in_a_row_and_the_timeline_peaks_in_the_arena(plans, strategy):
    found = plans[strategy]
    assert int(found.buffers["size_bytes"].sum()) == found.total_bytes
    assert int(found.by("content")["bytes"].sum()) == found.total_bytes
    assert 0 < found.timeline.max() <= found.memory.temp_bytes
    assert found.timeline[found.peak] == found.timeline.max()


def test_the_arena_holds_what_the_exchange_may_receive_at_worst(plans):
    # 4 ranks × 2 sequences × 512 tokens reach one rank: 4096 rows of DeepEP, 2 slots each.
    buffers = plans["sparse-gmm-deepep"].buffers
    assert any("8192,256]" in shape or "8192,1,256]" in shape for shape in buffers["shape"])
    # Ragged: 8 ranks × 1024 tokens × min(1 local expert, 2) = 8192 rows, no slots.
    buffers = plans["sparse-gmm"].buffers
    assert any("8192,256]" in shape or "8192,1,256]" in shape for shape in buffers["shape"])


def _on_abstract_devices(setting: Setting):
    """The bundled model's step and its arguments, as `build_bundled` makes them of devices."""
    formats = setting.precision
    model = replace(setting.model, compute_dtype=formats.compute, weight_dtype=formats.weights)
    mesh = AbstractMesh(setting.plan.degrees, AXES, axis_types=(AxisType.Auto,) * len(AXES))
    job = Job(model, setting.plan, setting.strategy, "cuda")
    optimizer = adamw(OptimizerSettings())
    weights = weight_shapes(model)
    bias = jax.ShapeDtypeStruct((model.moe_layers, model.experts), jnp.float32)
    state = TrainState(weights, bias, jax.eval_shape(optimizer.init, weights))

    def laid_out(leaf, spec):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, spec))

    placed = jax.tree.map(laid_out, state, state_specs(job, optimizer))
    rows = setting.plan.devices * setting.pdbs
    batch = jax.ShapeDtypeStruct((rows, setting.sequence + 1), jnp.int32)
    return make_step(job, mesh), (placed, laid_out(batch, BATCH))


def test_a_step_of_this_process_is_planned_to_the_byte_as_one_that_the_child_builds(plans):
    built = plans["sparse-gmm-deepep"]
    step, arguments = _on_abstract_devices(_setting("sparse-gmm-deepep"))
    found = moeprof.plan(step, *arguments)
    assert found.arguments_bytes == built.memory.argument_bytes
    assert found.outputs_bytes == built.memory.output_bytes
    assert found.aliased_bytes == built.memory.alias_bytes
    assert found.temporaries_bytes == built.memory.temp_bytes
    assert found.peak_bytes == built.total_bytes + found.constants_bytes
    ours = found.buffers[found.buffers["content"].ne("constants")].reset_index(drop=True)
    pd.testing.assert_frame_equal(ours, built.buffers)
    assert {"moeprof_moe_dispatch", "moeprof_moe_combine"} <= set(found.unknowns["name"])
    assert any("among 4 ranks, the mesh axis 'expert'" in note for note in found.notes)


def test_outside_the_pool_is_deepeps_ring_beside_the_runtime(plans):
    names = plans["sparse-gmm-deepep"].outside
    assert any("DeepEP" in name for name in names)
    assert not any("DeepEP" in name for name in plans["sparse-gmm"].outside)


def test_the_difference_of_two_plans_adds_up(plans):
    base, new = plans["sparse-ragged-dot"], plans["sparse-gmm-deepep"]
    changes = memory_plan_difference(base, new)
    assert int(changes["change_bytes"].sum()) == new.total_bytes - base.total_bytes


def test_the_example_plans_a_users_own_function(plugin):
    found = subprocess.run(
        [sys.executable, EXAMPLE, "h100_sxm", "16"],
        env={"PYTHONPATH": ":".join(sys.path), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    # 16 layers × 4096² bfloat16 over 16 devices, and 4096 tokens × 4096: 32 + 32 MiB.
    assert found.stdout.splitlines()[0] == "arguments 64.00 MiB"
    assert "compiling build for 16 × NVIDIA H100" in found.stderr


def raises(devices):
    raise ValueError(f"no mesh for {len(devices)}")


def test_what_the_users_function_raises_is_said_with_its_place(plugin):
    with pytest.raises(CompileError, match=r"no mesh for 4 \(at .*plans.py:\d+\)"):
        plan(raises, "h100_sxm", 4)


def test_a_compiler_that_takes_too_long_is_stopped(plugin):
    with pytest.raises(CompileError, match=r"not done after 0\.01 s and stopped"):
        plan(raises, "h100_sxm", 4, timeout_s=0.01)


def test_memory_is_laid_out_once_the_program_is_whole(tmp_path):
    module, buffers = b"\x0a\x02ab", b"\x1a\x02cd"  # fields 1 and 3 of HloProto
    program = tmp_path / "module_0001.jit_step.gpu_after_optimizations.hlo.pb"
    (tmp_path / "module_0002.tried.ll").write_text("")
    assert not is_laid_out(tmp_path)
    for cut in (module[:3], module, module + buffers[:3]):
        program.write_bytes(cut)
        assert not is_laid_out(tmp_path)
    program.write_bytes(module + buffers)
    assert is_laid_out(tmp_path)
    (tmp_path / "module_0002.tried.ll").unlink()
    assert not is_laid_out(tmp_path)


def test_without_the_plugin_the_command_that_installs_it_is_named(monkeypatch):
    target = load_target(load_hardware("h100_sxm"), 8)
    monkeypatch.setattr(compiled.importlib.metadata, "entry_points", lambda group: ())
    monkeypatch.setattr(compiled.importlib.metadata, "version", lambda name: "0.10.2")
    command = "pip install --no-deps jax-cuda13-plugin==0.10.2 jax-cuda13-pjrt==0.10.2`"
    with pytest.raises(CompileError, match=re.escape(command)):
        compiled.require_compiler(target)
    monkeypatch.setattr(compiled.importlib.metadata, "version", lambda name: "0.7.1")
    with pytest.raises(CompileError, match=r"expected jaxlib 0\.7\.2 or later, found 0\.7\.1"):
        compiled.require_compiler(target)


def test_an_assembler_is_wanted_where_the_compiler_tries_products():
    assert len(compiled.packages("cuda", "0.10.2")) == 2
    assert compiled.packages("cuda", "0.11.2")[2:] == ("nvidia-cuda-nvcc", "nvidia-nvvm")


def test_amds_compiler_is_refused_with_what_it_needs(monkeypatch):
    monkeypatch.delenv("MOEPROF_EXPERIMENTAL_ROCM_PLAN", raising=False)
    with pytest.raises(CompileError, match=r"mi300x: experimental.*lacks libamdhip64"):
        plan("module:function", "mi300x", 8)


@pytest.mark.parametrize(
    ("build", "said"),
    [
        ("no_function", "expected build as MODULE:FUNCTION"),
        (lambda devices: None, "Move it there"),
    ],
)
def test_a_function_that_another_process_cannot_find_is_refused(build, said):
    with pytest.raises(SelectionError, match=said):
        plan(build)


def test_options_that_json_cannot_hold_are_refused(monkeypatch):
    monkeypatch.setattr("moeprof.projector.compiled.plan.require_compiler", lambda target: None)
    with pytest.raises(SelectionError, match="values that JSON can hold"):
        plan("module:function", options={"a": object()})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"plan": ParallelPlan(1, 1, 4, tensor=2)}, "no tensor parallelism"),
        (
            {"plan": ParallelPlan(1, 1, 4, pipeline=2, context=2)},
            "context parallelism and pipe",
        ),
        ({"optimizer": "muon"}, "no optimizer muon"),
        ({"precision": Precision(first_moment="float32")}, "in another format than the weights"),
        ({"sequence": None}, "without a sequence length"),
    ],
)
def test_what_the_bundled_model_has_not_is_refused_in_one_line(changes, said):
    with pytest.raises(SpecError, match=said) as error:
        compile_bundled(_setting("sparse-gmm", **changes))
    assert "\n" not in str(error.value)


def test_a_second_compilation_that_fails_leaves_what_the_first_found(monkeypatch, tmp_path):
    def failing(*_):
        raise TraceError("dump: half a program")

    monkeypatch.setattr(plans_module, "_fill", failing)
    first = LaidOut(SimpleNamespace(), 1.0)
    found = plans_module._with_libraries(first, {}, "step", tmp_path, 1.0)
    assert found.trace is first.trace
    assert (found.library_temp_bytes, found.is_range_known) == (None, False)
    assert found.notes == (
        "not known: the peak where libraries compute all products. dump: half a program",
    )
