"""Question: which run does a user mean, and what was taken where nothing was said?

What an option says comes first, then what the model's configuration says, then a default. What was
not said by an option is told.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from moeprof.cli.memory_options import RunOptions
from moeprof.cli.memory_plan import plan_of
from moeprof.errors import SelectionError, SpecError
from moeprof.projector.setting import Precision, Setting
from moeprof.specs.dtypes import DTYPE_BYTES
from moeprof.specs.hardware import load_hardware
from moeprof.specs.presets import load_preset
from moeprof.specs.strategy import Strategy, parse_strategy

HARDWARE = "h100_sxm"
UNKNOWN, AUTO = "unknown", "auto"
STRATEGIES = ("dense-cf1.25", "sparse-gmm", "sparse-gmm-deepep", "sparse-ragged-dot")
"""What ``all`` stands for."""

_SHORT_DTYPES = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "f16": "float16",
    "fp32": "float32",
    "f32": "float32",
    "fp8": "float8_e4m3fn",
}
_MEGATRON = {"master": "float32", "first_moment": "float32", "second_moment": "float32",
             "gradients": "float32"}  # fmt: skip


@dataclass(frozen=True)
class Wanted:
    """What to project: ``setting`` at each of ``strategies`` and ``batches`` (none: find them)."""

    setting: Setting
    model_key: str
    strategies: tuple[Strategy, ...]
    batches: tuple[int, ...]
    said: tuple[str, ...]


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
    said: list[str] = []
    model = load_preset(options.model)
    with as_usage():
        hardware = load_hardware(options.hardware or HARDWARE)
        if options.hardware is None:
            taken.append(f"hardware {HARDWARE}")
        plan = plan_of(options, model, taken, said)
        sequence = _sequence(options, taken)
        world = options.world or "maxtext"
        setting = Setting(
            model=model,
            plan=plan,
            strategy=Strategy("sparse-gmm"),
            hardware=hardware,
            sequence=sequence,
            pdbs=1,
            microbatches=_microbatches(options, plan.pipeline, taken),
            world=world,
            schedule=_schedule(options, world, plan.virtual),
            optimizer=options.optimizer or "adamw",
            precision=_precision(options, world),
            offload=frozenset(_parts(options.offload)),
            layers_per_stage=_layers(options),
            **_given(options),  # type: ignore[arg-type]
        )
        strategies = _strategies(options)
        batches = _batches(options, setting, said)
    if taken:
        said.insert(0, f"Not given, so taken: {', '.join(taken)}.")
    return Wanted(setting, options.model, strategies, batches, tuple(said))


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


def read_counts(option: str, text: str, how_many: str = "some, such as 4,8") -> tuple[int, ...]:
    """Whole numbers of at least 1, with commas between them.

    Raises:
        SpecError: `text` is something else.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() and int(part) >= 1 for part in parts):
        raise SpecError(
            f"{option}: expected whole numbers of at least 1 ({how_many}), found {text!r}."
        )
    return tuple(int(part) for part in parts)


def _sequence(options: RunOptions, taken: list[str]) -> int | None:
    if options.seq is None:
        taken.append("seq 4096")
        return 4096
    if options.seq == UNKNOWN:
        return None
    return read_counts("--seq", options.seq, f"one, or {UNKNOWN}")[0]


def _microbatches(options: RunOptions, stages: int, taken: list[str]) -> int:
    if options.microbatches is not None or stages == 1:
        return options.microbatches or 1
    taken.append(f"{2 * stages} microbatches (two per stage)")
    return 2 * stages


def _layers(options: RunOptions) -> tuple[int, ...] | None:
    text = options.layers_per_stage
    return None if text is None else read_counts("--layers-per-stage", text)


def _schedule(options: RunOptions, world: str, chunks: int) -> str:
    """MaxText's pipeline is GPipe, or circular with several chunks; Megatron's is 1F1B."""
    if options.schedule:
        return options.schedule
    single, repeated = ("1f1b", "interleaved") if world == "megatron" else ("gpipe", "circular")
    return repeated if chunks > 1 else single


def _precision(options: RunOptions, world: str) -> Precision:
    formats: dict[str, str | None] = dict(_MEGATRON) if world == "megatron" else {}
    named = {
        "weights": ("--weight-dtype", options.weight_dtype),
        "master": ("--master-dtype", options.master_dtype),
        "first_moment": ("--moment-dtype", options.moment_dtype),
        "second_moment": ("--moment-dtype", options.moment_dtype),
        "gradients": ("--grad-dtype", options.grad_dtype),
    }
    for name, (option, text) in named.items():
        if text is not None:
            is_none = name == "master" and text == "none"
            formats[name] = None if is_none else read_dtype(option, text)
    return Precision(**formats)  # type: ignore[arg-type]


def _given(options: RunOptions) -> dict[str, object]:
    """Options that stand for fields of `Setting` by the same name, where they were given."""
    names = ("mem_fraction", "overload", "ragged_buffer_factor", "vocab_tiling", "deepep_sms",
             "attention")  # fmt: skip
    values = {name: getattr(options, name) for name in names}
    return {name: value for name, value in values.items() if value is not None}


def _strategies(options: RunOptions) -> tuple[Strategy, ...]:
    names = _parts(options.strategy) or ("all",)
    names = tuple(n for name in names for n in (STRATEGIES if name == "all" else (name,)))
    return tuple(parse_strategy(name) for name in dict.fromkeys(names))


def _batches(options: RunOptions, setting: Setting, said: list[str]) -> tuple[int, ...]:
    """pdbs that were asked for; empty: those around the limit."""
    is_auto = options.pdbs in (None, AUTO)
    if options.global_batch is None:
        return () if is_auto else read_counts("--pdbs", str(options.pdbs), "4,8 or auto")
    if not is_auto:
        raise SpecError("--pdbs and --global-batch both say how large the batch is: give one.")
    plan, microbatches = setting.plan, setting.microbatches
    replicas = plan.data * plan.fsdp * plan.expert
    pdbs, left = divmod(options.global_batch, replicas * microbatches)
    if left:
        step = replicas * microbatches
        lower = options.global_batch - left
        near = " or ".join(str(n) for n in (lower, lower + step) if n)
        raise SpecError(
            f"--global-batch {options.global_batch}: expected a multiple of {step}, which are "
            f"{replicas} devices that hold sequences of their own × {microbatches} "
            f"microbatch{'es' if microbatches > 1 else ''}. The nearest: {near}."
        )
    said.append(
        f"Global batch {options.global_batch} is pdbs {pdbs} on {replicas} devices that hold "
        f"sequences of their own, {microbatches} microbatch{'es' if microbatches > 1 else ''}."
    )
    return (pdbs,)


def _parts(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(part.strip() for name in names for part in name.split(",") if part.strip())
