"""Question: what does a model's configuration say of a run, where a request says nothing?

The keys are MaxText's (configs/base.yml) and Hugging Face's ``torch_dtype``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from reprlib import repr as shown

from moeprof.errors import SelectionError, SpecError
from moeprof.projector.framework import Framework
from moeprof.projector.request.plan import (
    DEGREES,
    PER_DEVICE,
    Request,
    batches,
    fill_mesh,
    is_gpu,
    plan_of,
)
from moeprof.specs import DTYPE_BYTES, MODEL_DTYPES, check_dtype
from moeprof.specs.remat import OFFLOADING, POLICIES
from moeprof.specs.sources.document import MOST, LoadedModel

_OPTIMIZERS = {"adamw": "adamw", "adam_pax": "adamw", "sgd": "sgd", "muon": "muon"}
_REMAT = {"full": "full", "minimal": "minimal", "none": "full"} | {
    name: name for name in (*POLICIES, *OFFLOADING)
}
"""MaxText 0.2.5's ``none`` is no policy (get_remat_policy of nnx_decoders.py), with which
`jax.checkpoint` recomputes all of a layer."""
_LEVELS = ("ici", "dcn")
_WHOLE_SCORES = "dot_product"
_NO_CHECKPOINTS = ("start", "evaluation")


def with_config(
    request: Request,
    loaded: LoadedModel,
    program: Framework,
    searched: Collection[str] = (),
) -> tuple[Request, tuple[str, ...]]:
    """The request with what the configuration says filled in, and sentences on both.

    What the framework has none of is left out, and so are fields that are ``searched``.

    Raises:
        SpecError: a value of the configuration cannot be.
    """
    given = loaded.options
    for key in given:
        loaded.value(key, _finite)
    if loaded.sources:
        for key in _CHOICES.keys() & given.keys():
            loaded.value(key, _one_of(_CHOICES[key]))
    found = _read(loaded)
    is_open = not request.strategy and "strategy" not in found and "strategy" not in searched
    if loaded.sources and loaded.model.experts and is_open:
        raise SelectionError(
            "memory --maxtext: sparse_matmul False without a capacity_factor: every expert takes "
            "every token, of which the closed form has no account. --strategy takes another's, "
            "--compile asks the compiler."
        )
    if searched:
        found |= _axes(loaded, replace(request, devices=None))
        found |= {field: (key, given[key]) for key, field in PER_DEVICE.items() if key in given}
    elif loaded.sources:
        found |= _of_command(loaded, request)
    else:
        found |= _axes(loaded, request)
        found |= _of_file(loaded, request, program, found)
    if program.runs_stages_as_one and "microbatches" not in searched:
        _refuse_both(loaded, request, found)
    taken: dict[str, list[str]] = {}
    beaten, left, values = [], [], {}
    for field, (key, value) in found.items():
        if field in searched:
            left.append(f"{key} {given.get(key, value)}")
            continue
        if field in program.lacks:
            beaten.append(f"{key} {given.get(key, value)}: {program.name} has none, left out.")
            continue
        asked = getattr(request, field)
        if value == -1 and request.devices is None and asked is None:
            beaten.append(f"{key} is -1, what is left: 1, as --devices says no number.")
        elif asked in (None, ()):
            values[field] = value
            source = loaded.sources.get(key.split()[0], loaded.origin)
            if not loaded.sources or field not in DEGREES or value != 1:
                taken.setdefault(source, []).append(f"{key} {given.get(key, value)}")
        elif asked != value:
            shown = ",".join(asked) if isinstance(asked, tuple) else asked
            beaten.append(
                f"--{field.replace('_', '-')} {shown} wins over {key} {given.get(key, value)} of "
                f"{loaded.origin}."
            )
    if request.global_batch and "pdbs" not in found and "per_device_batch_size" in given:
        beaten.append(f"--global-batch wins over per_device_batch_size of {loaded.origin}.")
    said = [f"From {source}: {', '.join(names)}." for source, names in taken.items()]
    said += [f"Searched, so not taken from there: {', '.join(left)}."] if left else []
    filled = replace(request, **values)  # type: ignore[arg-type]
    if given.get("remat_policy") == "none":
        said.append("remat_policy none: MaxText recomputes whole layers then, as with full.")
    dropped = (*_not_understood(given, request, loaded.origin), *_chunks(given, filled))
    if given.get("cast_logits_to_fp32") is False:
        dropped = (*dropped, "cast_logits_to_fp32 False: logits are counted as with True.")
    unused = () if loaded.sources else _left_out(given, loaded.origin)
    if loaded.sources and found.get("strategy", ("",))[0] == "megablox" and is_gpu(request):
        unused = [_INTERPRETED]
    return filled, (*said, *beaten, *unused, *dropped)


def _read(loaded: LoadedModel) -> dict[str, tuple[str, object]]:
    """Field of `Request` → the key that says it and its value; batches need the plan first."""
    given = loaded.options
    found: dict[str, tuple[str, object]] = {}
    for key, (field, convert) in _KEYS.items():
        if given.get(key) not in (None, ""):
            value = loaded.value(key, convert)
            if value is not None:
                found[field] = (key, value)
    strategy = _strategy(given)
    if strategy is not None:
        found["strategy"] = strategy
    return found


def _axes(loaded: LoadedModel, request: Request) -> dict[str, tuple[str, object]]:
    """Degrees of parallelism: inside a machine (ici) times across machines (dcn).

    Where both have one of -1, as MaxText's own defaults do, what is left of each goes by slices.
    """
    found: dict[str, tuple[str, object]] = {}
    for field, axis in DEGREES.items():
        keys = [f"{level}_{axis}_parallelism" for level in _LEVELS]
        present = [key for key in keys if loaded.options.get(key) is not None]
        if present:
            degrees = [loaded.value(key, _integer) for key in present]
            degree = -1 if -1 in degrees else math.prod(degrees)
            found[field] = (" × ".join(present), degree)
    still = [field for field, (_, degree) in found.items() if degree == -1]
    if len(still) > 1 and request.devices is not None:
        mesh = _mesh(loaded, request)
        found |= {
            field: (found[field][0], mesh[f"{DEGREES[field]}_parallelism"]) for field in still
        }
    return found


def _of_file(
    loaded: LoadedModel, request: Request, program: Framework, found: dict[str, tuple[str, object]]
) -> dict[str, tuple[str, object]]:
    """What a MaxText file that is given as a model says of batches, with the plan that it is for.

    Nothing where that plan cannot be: its check says why.
    """
    degrees = {
        field: value
        for field, (_, value) in found.items()
        if field in DEGREES and getattr(request, field) is None
        if not (value == -1 and request.devices is None)
    }
    try:
        plan, _ = plan_of(replace(request, **degrees), program)  # type: ignore[arg-type]
    except SpecError:
        return {}
    return batches(loaded, request, {name: getattr(plan, axis) for name, axis in DEGREES.items()})


def _refuse_both(
    loaded: LoadedModel, request: Request, found: Mapping[str, tuple[str, object]]
) -> None:
    """Refuse gradients that are accumulated over passes through a pipeline.

    Raises:
        SelectionError: the configuration has both, and no option says how many microbatches.
    """
    key, stages = "gradient_accumulation_steps", request.pp or found.get("pp", ("", 1))[1]
    steps = loaded.options.get(key)
    if stages == 1 or request.microbatches is not None or steps in (None, 1):
        return
    raise SelectionError(
        f"memory: {key} {steps} of {loaded.sources.get(key, loaded.origin)} with {stages} pipeline "
        "stages: expected one of the two, as gradients that are accumulated over passes through a "
        "pipeline are in no account. --microbatches takes microbatches of the pipeline alone."
        + (" --compile asks the compiler." if loaded.sources else "")
    )


# A command line of MaxText, whose mesh is of slices: on GPUs each host is one, as JAX reports them.

_INTERPRETED = (
    "megablox True on a GPU: MaxText 0.2.5 interprets its TPU kernel there; the account is of "
    "grouped products by a kernel. megablox=False is ragged_dot."
)


def _mesh(loaded: LoadedModel, request: Request) -> dict[str, int]:
    """Axis → its degree in the mesh that MaxText makes, by slices; -1 takes what is left."""
    said = {f"{axis}_parallelism": getattr(request, field) for field, axis in DEGREES.items()}
    if None not in said.values():  # nothing is left to slices
        return said
    given = loaded.options
    inside, across = (
        {key.split("_", 1)[1]: loaded.value(key, _integer) for key in given
         if key.startswith(f"{level}_")}
        for level in _LEVELS
    )  # fmt: skip
    for key, degree in said.items():
        if degree is not None:
            inside[key], across[key] = degree, 1
    if request.devices is None and -1 in inside.values():
        (key, *_) = (key for key, degree in inside.items() if degree == -1)
        raise SelectionError(
            f"memory --maxtext: ici_{key} is -1, what is left of the devices: give --devices N."
        )
    slices = loaded.value("num_slices", _count) if "num_slices" in given else None
    fill_mesh(inside, across, request, slices)
    return {key: inside.get(key, 1) * across.get(key, 1) for key in {**inside, **across}}


def _of_command(loaded: LoadedModel, request: Request) -> dict[str, tuple[str, object]]:
    """Degrees of the mesh that MaxText makes, and the sequences that each part of a batch has.

    Its batch is per device of all; activations are split over data, fsdp and expert alone, so the
    devices of another axis share theirs.

    Raises:
        SelectionError: the degrees do not fit the devices, or split a sequence.
    """
    degrees = _mesh(loaded, request)
    known = {f"{axis}_parallelism": field for field, axis in DEGREES.items()}
    others = [f"{key} {n}" for key, n in degrees.items() if n > 1 and key not in known]
    if others:
        raise SelectionError(
            f"memory --maxtext: {', '.join(others)}: the closed form has no such axis; --compile "
            "has all of them."
        )
    found: dict[str, tuple[str, object]] = {
        known[key]: (f"ici_{key} × dcn_{key}", degree)
        for key, degree in degrees.items()
        if key in known
    }
    of_mesh = {name: int(str(found[name][1])) for name in found}
    return {**found, **batches(loaded, request, of_mesh)}


def _left_out(given: Mapping[str, object], origin: str) -> list[str]:
    """Axes that a projection has no place for."""
    known = {f"{level}_{axis}_parallelism" for level in _LEVELS for axis in DEGREES.values()}
    used = [
        f"{key} {value}"
        for key, value in given.items()
        if key.endswith("_parallelism") and key not in known and value not in (None, 1)
    ]
    return [f"Not projected, of {origin}: {', '.join(used)}."] if used else []


def _not_understood(given: Mapping[str, object], request: Request, origin: str) -> list[str]:
    """Names that are read and stand for nothing a projection knows, where no option says better."""
    return [
        f"{key} {given[key]} of {origin} is not known here, so it is not taken: give "
        f"--{field.replace('_', '-')}."
        for key, field in _NAMED.items()
        if given.get(key) not in (None, "", "default")
        and getattr(request, field) is None
        and _KEYS[key][1](given[key], key) is None
    ]


def _chunks(given: Mapping[str, object], request: Request) -> list[str]:
    """MaxText makes as many repeats as the layers of a stage leave; a projection is told them."""
    layers = given.get("num_layers_per_pipeline_stage")
    if layers is None or request.vpp is not None or request.pp in (None, 1):
        return []
    return [
        f"num_layers_per_pipeline_stage {layers}: MaxText repeats its stages layers / "
        f"({request.pp} × {layers}) times; not taken, give --vpp."
    ]


def _strategy(given: Mapping[str, object]) -> tuple[str, object] | None:
    """How tokens reach experts, by MaxText's switches; None where they say nothing."""
    factor = given.get("capacity_factor")
    if given.get("sparse_matmul") is False:
        is_set = isinstance(factor, int | float) and factor > 0
        return ("capacity_factor", (f"dense-cf{factor:g}",)) if is_set else None
    for key in ("use_turbo_deepep", "moe_use_deepep", "use_deepep"):
        if given.get(key) is True:
            return key, ("sparse-gmm-deepep",)
    for key in ("use_turbo_grouped_gemm", "megablox"):
        if given.get(key) is True:
            return key, ("sparse-gmm",)
    if given.get("megablox") is False and given.get("sparse_matmul") is True:
        return "megablox", ("sparse-ragged-dot",)
    return None


def _finite(value: object, what: str) -> None:
    """Refuse what YAML writes as ``.inf`` and ``.nan``, and what no run has so many of."""
    if isinstance(value, int | float) and not abs(value) <= MOST:
        raise SpecError(f"{what}: expected a number of at most {MOST:,}, found {shown(value)}.")


def _one_of(choices: Collection[str]) -> Callable[[object, str], None]:
    """Refuse what MaxText has none of."""

    def check(value: object, what: str) -> None:
        if value not in choices:
            raise SpecError(f"{what}: expected one of {', '.join(choices)}, found {shown(value)}.")

    return check


def _integer(value: object, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or (value < 1 and value != -1):
        raise SpecError(f"{what}: expected a whole number of at least 1, or -1, found {value!r}.")
    return value


def _count(value: object, what: str) -> int | None:
    """A whole number; MaxText's -1 stands for its own choice."""
    number = _integer(value, what)
    return None if number == -1 else number


def _dtype(value: object, what: str) -> str:
    check_dtype(what, str(value), DTYPE_BYTES)
    return str(value)


def _named(known: Mapping[str, str]) -> Callable[[object, str], object]:
    """A name that MaxText and a projection both know; others stay unsaid."""
    return lambda value, _what: known.get(str(value))


_KEYS: dict[str, tuple[str, Callable[[object, str], object]]] = {
    "enable_checkpointing": (
        "phases",
        lambda value, _: _NO_CHECKPOINTS if value is False else None,
    ),
    "max_target_length": ("seq", lambda value, what: str(_integer(value, what))),
    "gradient_accumulation_steps": ("microbatches", _count),
    "num_pipeline_repeats": ("vpp", _count),
    "remat_policy": ("remat", _named(_REMAT)),
    # Narrower than `MODEL_DTYPES`: bfloat16, and its reader says so.
    "dtype": ("compute_dtype", _named({name: name for name in MODEL_DTYPES})),
    "weight_dtype": ("weight_dtype", _dtype),
    # What its reader cannot take is bfloat16, and said.
    "torch_dtype": ("weight_dtype", _named({name: name for name in DTYPE_BYTES})),
    "grad_dtype": ("grad_dtype", _dtype),
    "mu_dtype": ("moment_dtype", _dtype),
    "opt_type": ("optimizer", _named(_OPTIMIZERS)),
    "num_vocab_tiling": ("vocab_tiling", _count),
    "ragged_buffer_factor": (
        "ragged_buffer_factor",
        lambda value, _: value if isinstance(value, int | float) and value > 0 else None,
    ),
    "optimizer_memory_host_offload": (
        "offload",
        lambda value, _: ("optimizer",) if value is True else None,
    ),
    "scan_layers": ("is_scanned", lambda value, _: False if value is False else None),
    "float32_weight_sum": (
        "has_float32_weight_sum",
        lambda value, _: False if value is False else None,
    ),
    "attention": (
        "attention",
        lambda value, _: "whole" if value == _WHOLE_SCORES else "flash",
    ),
}

_CHOICES: dict[str, Collection[str]] = {
    "opt_type": tuple(_OPTIMIZERS),
    "remat_policy": (*_REMAT, "custom", "minimal_with_quantization",
                     "minimal_with_context_and_quantization"),
    "attention": ("flash", _WHOLE_SCORES, "cudnn_flash_te", "cudnn_flash_jax", "paged",
                  "vllm_rpa", "vllm_batched_rpa"),
}  # fmt: skip
"""MaxText 0.2.5's names: OptimizerType of configs/types.py, `apply_attention` of attention_op.py,
where ``autoselected`` was one of them already, `get_remat_policy` of nnx_decoders.py."""

_NAMED = {"remat_policy": "remat", "opt_type": "optimizer"}
"""Keys whose values are names, and the fields of `Request` that take them."""
