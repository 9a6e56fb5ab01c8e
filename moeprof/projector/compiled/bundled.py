"""Question: what does the compiler lay out for the bundled model's step under a setting?

`compile_bundled` asks; `build_bundled` is the step as the compiler takes it, made in the process
that compiles.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from moeprof.errors import SpecError
from moeprof.projector.breakdown import Row
from moeprof.projector.compiled.plan import Named, compile_named
from moeprof.projector.compiled.result import CompiledPlan
from moeprof.projector.outside import outside_rows
from moeprof.projector.setting import Setting, degrees_of
from moeprof.specs.model import GqaSpec, LinearSpec, MlaSpec, ModelSpec
from moeprof.specs.plan import ALL_AXES, AXES, ParallelPlan
from moeprof.specs.plan_checks import check_plan
from moeprof.specs.remat import Remat
from moeprof.specs.strategy import Strategy, parse_strategy

if TYPE_CHECKING:
    import jax
    from jax.sharding import PartitionSpec

Built = tuple[Callable[..., Any], Sequence[Any]]

_BUILD = Named("moeprof.projector.compiled.bundled", "build_bundled")


def compile_bundled(
    setting: Setting, *, without_triton: bool = True, timeout_s: float = 900.0
) -> CompiledPlan:
    """Compile the bundled model's training step for GPUs that are not there.

    Number formats of weights and activations are the setting's `Precision`; moments and gradients
    have the weights'. What lies outside the pool is the closed form's.

    Args:
        setting: model, plan, strategy, hardware, ``sequence`` and ``pdbs``.
        without_triton: as of `moeprof.projector.compiled.plan.plan`.
        timeout_s: seconds after which the compiler is stopped.

    Raises:
        SpecError: the bundled model has not what the setting asks for.
        SelectionError: the hardware's compiler cannot be had without the device.
        CompileError: the compiler is not installed, fails, or takes too long.
    """
    model = _model(setting)
    options = {
        "model": _values(model),
        "plan": {**asdict(setting.plan), "remat": setting.plan.remat.text},
        "strategy": setting.strategy.name,
        "sequence": setting.sequence,
        "pdbs": setting.pdbs,
    }
    return compile_named(
        _BUILD,
        setting.hardware,
        setting.plan.devices,
        options,
        what=f"{model.name or 'the model'}, {setting.strategy.name}, pdbs {setting.pdbs}",
        ep_size=setting.plan.expert,
        outside={row.name: _bytes(row) for row in outside_rows(setting, degrees_of(setting))},
        is_bundled=True,
        without_triton=without_triton,
        timeout_s=timeout_s,
    )


def read_options(options: dict[str, Any]) -> dict[str, Any]:
    """The values that `compile_bundled` wrote as JSON."""
    model, plan = dict(options["model"]), dict(options["plan"])
    kind, attention = model.pop("attention")
    linear = model.pop("linear")
    return {
        "model": ModelSpec(
            attention=(MlaSpec if kind == "mla" else GqaSpec)(**attention),
            linear=LinearSpec(**linear) if linear else None,
            **model,
        ),
        "plan": ParallelPlan(**{**plan, "remat": Remat(plan["remat"])}),
        "strategy": parse_strategy(options["strategy"]),
        "sequence": options["sequence"],
        "pdbs": options["pdbs"],
    }


def _values(model: ModelSpec) -> dict[str, Any]:
    kind = "mla" if isinstance(model.attention, MlaSpec) else "gqa"
    return {**asdict(model), "attention": [kind, asdict(model.attention)]}


def _model(setting: Setting) -> ModelSpec:
    """The model in the setting's number formats; refuses what the bundled step does not do."""
    plan, precision = setting.plan, setting.precision
    formats = (precision.first_moment, precision.second_moment, precision.gradients)
    others = [axis for axis in ALL_AXES if axis not in AXES and plan.degree((axis,)) > 1]
    asked = {
        " and ".join(f"{axis} parallelism" for axis in others): others,
        f"optimizer {setting.optimizer}": setting.optimizer != "adamw",
        f"{setting.microbatches} microbatches in a step": setting.microbatches > 1,
        "offload to the host": setting.offload,
        "vocabulary tiling": setting.vocab_tiling > 1,
        "a master copy of the weights": precision.master is not None,
        "moments or gradients in another format than the weights": set(formats)
        != {precision.weights},
        "experts in a format of their own": precision.experts is not None,
        "a ragged buffer factor": setting.ragged_buffer_factor is not None,
        "recomputation of some layers only": setting.recomputed_layers is not None,
        "layers that are not scanned": not setting.is_scanned,
    }
    missing = [what for what, is_asked in asked.items() if is_asked]
    if setting.sequence is None or setting.pdbs is None:
        missing.append("step without a sequence length and pdbs")
    if missing:
        raise SpecError(
            f"compile: the bundled model has no {', '.join(missing)}. Project the setting without "
            "--compile, or compile your own step with moeprof.projector.compiled.plan.plan."
        )
    check_plan(plan, setting.model, plan.devices)
    return replace(setting.model, compute_dtype=precision.compute, weight_dtype=precision.weights)


def _bytes(row: Row) -> int | None:
    return None if row.size_bytes is None else int(row.size_bytes)


def build_bundled(
    devices: Sequence[jax.Device],
    *,
    model: ModelSpec,
    plan: ParallelPlan,
    strategy: Strategy,
    sequence: int,
    pdbs: int,
) -> Built:
    """The step and its arguments, on the mesh (data, fsdp, expert) over `devices`.

    Raises:
        SpecError: the bundled model has not what the model or the plan asks for.
    """
    import jax  # here: the process that asks has no need of it
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding

    from moeprof.model.layout import BATCH, Job, check_trainable
    from moeprof.model.train import (
        OptimizerSettings,
        TrainState,
        adamw,
        make_step,
        state_specs,
        weight_shapes,
    )

    check_trainable(model, plan)
    mesh = Mesh(np.array(devices).reshape(plan.degrees), AXES)
    job = Job(model, plan, strategy, devices[0].platform)
    optimizer = adamw(OptimizerSettings())
    weights = weight_shapes(model)
    bias = jax.ShapeDtypeStruct((model.moe_layers, model.experts), jnp.float32)  # type: ignore[no-untyped-call]
    moments = jax.eval_shape(optimizer.init, weights)
    state: TrainState[Any] = TrainState(weights, bias, moments)

    def laid_out(leaf: jax.ShapeDtypeStruct, spec: PartitionSpec) -> jax.ShapeDtypeStruct:
        sharding = NamedSharding(mesh, spec)
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)  # type: ignore[no-untyped-call]

    placed = jax.tree.map(laid_out, state, state_specs(job, optimizer))
    batch = jax.ShapeDtypeStruct((plan.devices * pdbs, sequence + 1), jnp.int32)  # type: ignore[no-untyped-call]
    return make_step(job, mesh), (placed, laid_out(batch, BATCH))
