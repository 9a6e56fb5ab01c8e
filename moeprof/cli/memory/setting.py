"""Question: which run does a user mean, and what was taken where nothing was said?

What an option says comes first, then what the model's configuration says, then a default. What was
not said by an option is told.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from moeprof.cli.memory.config import with_config
from moeprof.cli.memory.options import RunOptions
from moeprof.cli.memory.plan import check, load_of, plan_of, read_counts
from moeprof.errors import SelectionError, SpecError
from moeprof.projector.setting import WORLDS, MegatronOptions, Precision, Setting, usual_of
from moeprof.specs import DTYPE_BYTES
from moeprof.specs.hardware import load_hardware
from moeprof.specs.presets import preset_names
from moeprof.specs.sources import load_model
from moeprof.specs.sources.document import NOT_READ, LoadedModel
from moeprof.specs.strategy import Strategy, parse_strategy

HARDWARE = "h100_sxm"
UNKNOWN = "unknown"
STRATEGIES = ("dense-cf1.25", "sparse-gmm", "sparse-gmm-deepep", "sparse-ragged-dot")
"""What ``all`` stands for."""
_DEEPEP = "sparse-gmm-deepep"
MEGATRON_STRATEGIES = ("sparse-gmm", "sparse-gmm-deepep")
"""The same for Megatron: its all-to-all and its flexible (DeepEP) token dispatcher."""

_SHORT_DTYPES = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "f16": "float16",
    "fp32": "float32",
    "f32": "float32",
    "fp8": "float8_e4m3fn",
}
_WEIGHTS = "bfloat16"
_FLOAT32 = dict.fromkeys(("first_moment", "second_moment", "gradients"), "float32")


@dataclass(frozen=True)
class Wanted:
    """What to project: ``setting`` at each of ``strategies`` and ``batches`` (none: find them)."""

    setting: Setting
    model_key: str
    strategies: tuple[Strategy, ...]
    batches: tuple[int, ...]
    said: tuple[str, ...]
    is_fraction_asked: bool


def wanted(options: RunOptions) -> Wanted:
    """The run that the options describe.

    Raises:
        SelectionError: an option is missing or cannot be; wrong usage.
        SpecError: the model's configuration cannot be read.
    """
    if options.model is None:
        raise SelectionError(
            "memory: expected --model with a name or a file, found none. `moeprof models` lists "
            "the names; a Hugging Face config.json or a MaxText YAML is read too."
        )
    taken: list[str] = []
    loaded = load_model(options.model)
    model = loaded.model
    world = options.world or WORLDS[0]
    if world in WORLDS:
        with as_usage():
            check_world(vars(options), world)
    options, said = with_config(options, loaded)
    if loaded.origin not in preset_names():  # a preset's note is on what others published
        said[:0] = loaded.notes
    with as_usage():
        hardware = load_hardware(options.hardware or HARDWARE)
        if options.hardware is None:
            taken.append(f"hardware {HARDWARE}")
        plan = plan_of(options, taken, said)
        load = load_of(options, plan, _sequence(options, taken), taken, said)
        with _naming_unread(options.model, loaded.notes):
            said += check(options, plan, model, load.batch)
        setting = Setting(
            model=model,
            plan=plan,
            strategy=Strategy("sparse-gmm"),
            hardware=hardware,
            sequence=load.batch.sequence,
            pdbs=1,
            microbatches=load.batch.microbatches,
            world=world,
            schedule=load.batch.schedule,
            optimizer=options.optimizer or "adamw",
            precision=precision_of(options, world, loaded),
            offload=frozenset(_parts(options.offload)),
            layers_per_stage=load.batch.layers_per_stage,
            **(usual_of(hardware) | _given(options)),  # type: ignore[arg-type]
            **_of_megatron(options),  # type: ignore[arg-type]
        )
        strategies = strategies_of(options, world, setting, said)
    if taken:
        said.insert(0, f"Not given, so taken: {', '.join(taken)}.")
    is_asked = options.mem_fraction is not None
    return Wanted(setting, loaded.origin, strategies, load.pdbs, tuple(said), is_asked)


@contextlib.contextmanager
def _naming_unread(file: str | None, notes: Sequence[str]) -> Iterator[None]:
    """Inside, a complaint on the model names keys of its file that are not read: one may be why."""
    try:
        yield
    except SpecError as error:
        unread = next((note for note in notes if note.startswith(NOT_READ)), "")
        raise SpecError(f"{error} In {file} {unread}." if unread else str(error)) from error


@contextlib.contextmanager
def as_usage() -> Iterator[None]:
    """Inside, what cannot be was said by an option: wrong usage."""
    try:
        yield
    except SpecError as error:
        raise SelectionError(str(error)) from error


def read_dtype(option: str, text: str) -> str:
    """A number format by its short or full name.

    Raises:
        SpecError: there is none of that name.
    """
    name = _SHORT_DTYPES.get(text, text)
    if name not in DTYPE_BYTES:
        known = ", ".join([*_SHORT_DTYPES, *DTYPE_BYTES])
        raise SpecError(f"{option}: expected one of {known}, found {text!r}.")
    return name


def _sequence(options: RunOptions, taken: list[str]) -> int | None:
    if options.seq is None:
        taken.append("seq 4096")
        return 4096
    if options.seq == UNKNOWN:
        return None
    return read_counts("--seq", options.seq, f"one, or {UNKNOWN}")[0]


def precision_of(options: RunOptions, world: str, loaded: LoadedModel) -> Precision:
    """Megatron's mixed precision; in JAX all that is kept follows the weights (optax, zeros_like).

    A MaxText YAML that names no format has MaxText's own: computing in bfloat16, float32 weights.
    """
    master = options.master_dtype
    named = {
        "weights": ("--weight-dtype", options.weight_dtype),
        "master": ("--master-dtype", None if master == "none" else master),
        "first_moment": ("--moment-dtype", options.moment_dtype),
        "second_moment": ("--moment-dtype", options.moment_dtype),
        "gradients": ("--grad-dtype", options.grad_dtype),
    }
    asked = {
        name: read_dtype(option, text) for name, (option, text) in named.items() if text is not None
    }
    if world == "megatron":
        asked = {"master": "float32", **_FLOAT32} | asked
    else:
        is_maxtext = loaded.origin.lower().endswith((".yml", ".yaml"))
        weights = asked.setdefault("weights", loaded.model.weight_dtype if is_maxtext else _WEIGHTS)
        asked = dict.fromkeys(_FLOAT32, weights) | asked
    made = Precision(**asked)
    return replace(made, master=None) if master == "none" else made


def _given(options: RunOptions) -> dict[str, object]:
    """Options that stand for fields of `Setting` by the same name, where they were given."""
    names = ("mem_fraction", "overload", "ragged_buffer_factor", "vocab_tiling", "deepep_sms",
             "attention", "recomputed_layers", "maxtext_build")  # fmt: skip
    values = {name: getattr(options, name) for name in names}
    values["has_fused_loss"] = options.fused_loss
    return {name: value for name, value in values.items() if value is not None}


def _of_megatron(options: RunOptions) -> dict[str, object]:
    """What Megatron's world alone lets a run choose."""
    if options.sequence_parallel is None:
        return {}
    return {"megatron": MegatronOptions(has_sequence_parallel=options.sequence_parallel)}


def strategies_of(
    options: RunOptions, world: str, setting: Setting, said: list[str]
) -> tuple[Strategy, ...]:
    """The strategies that were asked for, in order and once each; a dense model has one."""
    if not setting.model.experts and not options.strategy:
        said.append("The model has no experts: strategies make no difference, one stands for all.")
        return (parse_strategy(STRATEGIES[0]),)
    every: tuple[str, ...] = MEGATRON_STRATEGIES if world == "megatron" else STRATEGIES
    asked = _parts(options.strategy) or ("all",)
    if setting.hardware.vendor == "Google" and "all" in asked:
        every = tuple(name for name in every if name != _DEEPEP)
        said.append(f"{_DEEPEP}: left out, DeepEP runs on GPUs.")
    names = [n for name in asked for n in (every if name == "all" else (name,))]
    strategies = tuple(parse_strategy(name) for name in dict.fromkeys(names))
    for strategy in strategies:
        replace(setting, strategy=strategy)  # refused here where the hardware does not run it
    return strategies


def _parts(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(part.strip() for name in names for part in name.split(",") if part.strip())


# Which options a world has none of. An option that changes nothing is refused, so that nobody takes
# an answer for one about it. What a model's configuration says, and the program does not have, is
# left out without a complaint.

_WORLDS = {
    "sequence_parallel": ("megatron",),
    "vocab_tiling": ("maxtext",),
    "fused_loss": ("maxtext", "megatron"),
    "ragged_buffer_factor": ("maxtext",),
    "mem_fraction": ("maxtext", "bundled"),  # PyTorch's allocator takes what others leave
    "sync_free": ("megatron",),  # a JAX program has static shapes and never waits
    "overlap": ("megatron",),  # MaxText's stages run one program, in GPipe's order
    "grad_dtype": ("maxtext", "megatron"),  # the bundled model's are those of its weights
}


def check_world(given: Mapping[str, object], world: str) -> None:
    """Refuse options, by name, that a world has none of; None: not given.

    Raises:
        SpecError: one is given.
    """
    for name, worlds in _WORLDS.items():
        if world in worlds or given.get(name) is None:
            continue
        raise SpecError(
            f"--{name.replace('_', '-')}: world {world} does not have it. "
            f"Leave it out, or give --world {' or '.join(worlds)}."
        )
