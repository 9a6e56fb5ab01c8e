"""Question: what can a user say about a run that is to be projected?

Every option is None where it is not given: a model's configuration or a default may then decide,
and the answer says which did.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import click

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
    (("--overload",), {"type": float, "help":
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
        "Which MaxText: 0.2.5 (the release, default on NVIDIA) or rocm-26.2 (AMD's container)."}),
    (("--schedule",), {"metavar": "NAME", "help": "Order of work of the pipeline."}),
    (("--microbatches",), {"type": click.IntRange(1), "help": "Microbatches of a step."}),
    (("--layers-per-stage",), {"metavar": "N,…", "help": "Layers of each stage, where uneven."}),
    (("--offload",), {"multiple": True, "metavar": "WHAT", "help":
     "What lies in the host's memory: activations, optimizer."}),
    (("--attention",), {"metavar": "KIND", "help": "flash, or whole: every score is kept."}),
)  # fmt: skip


def describes_a_run(command: _Function) -> _Function:
    """Add the options of a `Request`; they arrive by the names of its fields."""
    for names, settings in reversed(_OPTIONS):
        command = click.option(*names, **settings)(command)  # type: ignore[arg-type]
    return command


class OptionsOfMany(click.Group):
    """A group that is a command too: ``--strategy`` takes all names up to the next option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Give each name after ``--strategy`` its own option."""
        return super().parse_args(ctx, _spread(args, "--strategy", self.list_commands(ctx)))


def _spread(args: list[str], option: str, ends: list[str]) -> list[str]:
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
