"""Question: what can a user say about a run that is to be projected?

Every option is None where it is not given: a model's configuration or a default may then decide,
and the answer says which did.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Container, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import click

from moeprof.projector.any_step import PROGRAMS, SECONDS

_Function = TypeVar("_Function", bound=Callable[..., object])


DEGREE = click.IntRange(-1)
_OPTIONS: tuple[tuple[tuple[str, ...], dict[str, object]], ...] = (
    (("--model",), {"metavar": "KEY|FILE", "help":
     "A model of `moeprof models`, a Hugging Face config.json or a MaxText YAML."}),
    (("--hardware",), {"metavar": "KEY", "help":
     "A device of `moeprof hardware`. Default: h100_sxm, and it is said."}),
    (("--devices",), {"type": click.IntRange(1), "help": "Devices of the whole run."}),
    (("--ep",), {"type": DEGREE, "help":
     "Expert parallelism. One of the degrees may be -1: what is left of --devices."}),
    (("--fsdp",), {"type": DEGREE, "help": "Devices that weights and optimizer are split over."}),
    (("--tp",), {"type": DEGREE, "help": "Tensor parallelism."}),
    (("--pp",), {"type": DEGREE, "help": "Pipeline stages."}),
    (("--vpp",), {"type": click.IntRange(1), "help": "Chunks of layers per pipeline stage."}),
    (("--cp",), {"type": DEGREE, "help": "Context parallelism: parts of a sequence."}),
    (("--dp",), {"type": DEGREE, "help": "Replicas of the weights."}),
    (("--etp",), {"type": click.IntRange(1), "help": "Tensor parallelism inside an expert."}),
    (("--seq",), {"metavar": "N|unknown", "help": "Tokens of a sequence. Default: 4096."}),
    (("--pdbs",), {"metavar": "N,…|auto", "help":
     "Sequences per device and microbatch. Default: auto, the numbers around the limit."}),
    (("--global-batch",), {"type": click.IntRange(1), "help": "Sequences of a step, instead."}),
    (("--strategy",), {"multiple": True, "metavar": "NAME…|all", "help":
     "dense-cfX (capacity factor X), sparse-gmm, sparse-gmm-deepep, sparse-ragged-dot."}),
    (("--remat",), {"metavar": "POLICY", "help": "What the backward pass recomputes: full, …"}),
    (("--weight-dtype",), {"metavar": "DTYPE", "help": "bf16, fp32, fp16, fp8 or the full name."}),
    (("--master-dtype",), {"metavar": "DTYPE", "help":
     "A second copy of the weights that the optimizer keeps, or none."}),
    (("--moment-dtype",), {"metavar": "DTYPE", "help": "Both moments of the optimizer."}),
    (("--grad-dtype",), {"metavar": "DTYPE", "help": "Gradients."}),
    (("--optimizer",), {"metavar": "NAME", "help": "adamw, adafactor, muon or sgd."}),
    (("--mem-fraction",), {"type": float, "help":
     "Share of the device that XLA may take. Default: 0.93, on TPU 1."}),
    (("--imbalance", "--overload", "imbalance"), {"type": float, "help":
     "Rows that the fullest rank receives over those of an even routing."}),
    (("--ragged-buffer-factor",), {"type": float, "help":
     "Rows of a receive buffer over those of an even routing; more are dropped."}),
    (("--vocab-tiling",), {"type": click.IntRange(1), "help": "Parts of the loss."}),
    (("--fused-loss/--no-fused-loss",), {"default": None, "help":
     "A cross entropy that keeps no softmax."}),
    (("--sequence-parallel/--no-sequence-parallel",), {"default": None, "help":
     "Megatron: norms and residuals are split over TP too. Default: they are."}),
    (("--recomputed-layers",), {"type": click.IntRange(0), "help":
     "Layers of a stage that are recomputed as --remat says. Default: all."}),
    (("--deepep-sms",), {"type": click.IntRange(1), "help":
     "Multiprocessors that DeepEP takes. Default: 20 on NVIDIA, else 64."}),
    (("--framework", "--world", "framework"), {"metavar": "NAME", "help":
     "Whose program: maxtext, bundled or megatron."}),
    (("--maxtext-build",), {"metavar": "NAME", "help":
        "Which MaxText: 0.2.5 (the release) or rocm-26.2 (AMD's container, default on AMD)."}),
    (("--schedule",), {"metavar": "NAME", "help": "Order of work of the pipeline."}),
    (("--microbatches",), {"type": click.IntRange(1), "help": "Microbatches of a step."}),
    (("--layers-per-stage",), {"metavar": "N,…", "help": "Layers of each stage, where uneven."}),
    (("--offload",), {"multiple": True, "metavar": "WHAT", "help":
     "What lies in the host's memory: activations, optimizer."}),
    (("--attention",), {"metavar": "KIND", "help": "flash, or whole: every score is kept."}),
    (("--phases",), {"multiple": True, "metavar": "NAME…", "help":
     "Beside the step: start, restore, evaluation, checkpoint, all. Default: all; step: none."}),
    (("--eval-pdbs",), {"type": click.IntRange(1), "help":
     "Sequences per device of an evaluation. Default: as of a step."}),
    (("--host-memory",), {"type": float, "metavar": "GiB", "help":
     "Memory of one host. Without it nothing is said of whether a host suffices."}),
)  # fmt: skip


def takes(names: Collection[str]) -> Callable[[_Function], _Function]:
    """Add some of these options, by the names of the fields of a `Request`."""
    return lambda command: _with([one for one in _OPTIONS if _field(one[0]) in names], command)


def _field(names: tuple[str, ...]) -> str:
    """The field that an option fills."""
    return names[-1].partition("/")[0].removeprefix("--").replace("-", "_")


def describes_a_run(command: _Function) -> _Function:
    """Add the options of a `Request`; they arrive by the names of its fields."""
    return _with(_OPTIONS, command)


def _with(
    options: Sequence[tuple[tuple[str, ...], dict[str, object]]], command: _Function
) -> _Function:
    for names, settings in reversed(options):
        command = click.option(*names, **settings)(command)  # type: ignore[arg-type]
    return command


# A program that is planned as it is, and its own arguments.

MODULE = "-m "
"""How a ``--script`` begins that is a module."""
MAXTEXT: tuple[tuple[str, ...], dict[str, object]] = (
    ("--maxtext",), {"metavar": "FILE key=value …", "help":
    "MaxText's own command line in place of --model: its file, and what it is given."}
)  # fmt: skip
_PROGRAM: tuple[tuple[tuple[str, ...], dict[str, object]], ...] = (
    (("--script",), {"metavar": "FILE|-m MODULE", "help":
     "Plan a training script as it is: its arguments after --, with --devices."}),
    MAXTEXT,
    (("--from", "recorded"), {"metavar": "RUN", "type": click.Path(path_type=Path), "help":
     "Plan the command of a captured run again; what stands after -- is added to it."}),
    (("--programs",), {"type": click.IntRange(1), "help":
     f"Stop a script after so many programs, once it loops. Default: {PROGRAMS}; MaxText: 2."}),
    (("--seconds",), {"type": click.FloatRange(0, min_open=True), "help":
     f"Stop a script after so long. Default: {SECONDS:g}; MaxText: 300."}),
)  # fmt: skip
_ARGUMENTS = "moeprof.program_arguments"


def names_a_program(command: _Function) -> _Function:
    """Add the options of a program that is run as it is."""
    for names, settings in reversed(_PROGRAM):
        command = click.option(*names, **settings)(command)  # type: ignore[arg-type]
    return command


def arguments_of(ctx: click.Context) -> tuple[str, ...]:
    """What `take_arguments` kept."""
    return tuple(ctx.meta.get(_ARGUMENTS, ()))


def take_arguments(ctx: click.Context, args: list[str], commands: Container[str]) -> list[str]:
    """The command's own arguments; those of a program that is planned are kept beside.

    They stand after ``--``; words that MaxText is given may stand anywhere behind ``--maxtext``.
    """
    given = {arg.partition("=")[0] for arg in args}
    if not given & {"--script", "--maxtext", "--from"}:
        return args
    end = args.index("--") if "--" in args else len(args)
    own, after = list(_with_module(args[:end])), args[end + 1 :]
    words: list[str] = []
    if "--maxtext" in given:
        own, words = _apart(ctx, own, commands)
    ctx.meta[_ARGUMENTS] = (*words, *after)
    return own


def _with_module(args: list[str]) -> Iterator[str]:
    """``--script -m NAME`` as one argument of the option."""
    left = iter(args)
    for arg in left:
        yield arg
        value = next(left, None) if arg == "--script" else None
        if value == MODULE.strip():
            value = MODULE + next(left, "")
        if value is not None:
            yield value


def _apart(
    ctx: click.Context, args: list[str], commands: Container[str]
) -> tuple[list[str], list[str]]:
    """Options with their values, and words that are neither; a subcommand has its own."""
    takes = {
        name: not (isinstance(option, click.Option) and option.is_flag)
        for option in ctx.command.params
        for name in option.opts
    }
    own: list[str] = []
    words: list[str] = []
    left, last = iter(args), ""
    for arg in left:
        if arg in commands:
            return [*own, arg, *left], words
        if arg.startswith("-"):
            own.append(arg)
            last = arg
            if takes.get(arg, False):
                own += [value for value in [next(left, None)] if value is not None]
        elif last in OF_MANY and "=" not in arg:
            own.append(arg)
        else:
            words.append(arg)
    return own, words


OF_MANY = ("--strategy", "--phases")
"""Options that take all names up to the next option."""


def spread(args: list[str], ends: Container[str] = ()) -> list[str]:
    """Give each name after one of `OF_MANY` its own option; ``ends`` are no names."""
    for option in OF_MANY:
        args = _spread(args, option, ends)
    return args


def _spread(args: list[str], option: str, ends: Container[str]) -> list[str]:
    out: list[str] = []
    names = -1  # names since the option; -1 where it is not open
    for arg in args:
        if arg == option:
            names = 0
        elif names >= 0 and (arg.startswith("-") or arg in ends):
            names = -1
        elif names >= 0:
            out += [option] if names else []
            names += 1
        out.append(arg)
    return out


def given_to(*command: str) -> tuple[str, ...]:
    """The arguments of this command, without those that only say how the answer is shown."""
    words = len(command) + 1
    given = sys.argv[words:] if tuple(sys.argv[1:words]) == command else []
    kept: list[str] = []
    place = 0
    while place < len(given):
        if given[place] in ("--html", "--detail"):
            place += 2
            continue
        if given[place] != "--json" and not given[place].startswith(("--html=", "--detail=")):
            kept.append(given[place])
        place += 1
    return tuple(kept)
