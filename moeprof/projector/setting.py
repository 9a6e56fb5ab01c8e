"""Question: what is to be projected? A model, where and how it trains, as values.

A `Setting` is one training run. What the closed form computes with are its `Degrees`, which may be
arrays: one evaluation then covers thousands of plans (`moeprof memory search`), by the same code.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from moeprof.errors import SpecError
from moeprof.projector.framework import DEFAULT, Framework, framework
from moeprof.specs import DTYPE_BYTES, check_dtype
from moeprof.specs.hardware import HardwareSpec
from moeprof.specs.model import ModelSpec
from moeprof.specs.plan import ParallelPlan
from moeprof.specs.strategy import Strategy

ACCOUNTS = ("megatron", "primus", "torchtitan")
OFFLOADABLE = (
    "attn_norm",
    "qkv_linear",
    "core_attn",
    "attn_proj",
    "mlp_norm",
    "expert_fc1",
    "moe_act",
)
"""Modules whose inputs Megatron-LM can move to the host (``--offload-modules``)."""


@dataclass(frozen=True)
class Counts:
    """Live tensors that code alone does not settle; each was chosen by measurements.

    ``logit_copies``: copies of the logits in the compute format at the loss, their gradient among
    them. ``softmax_copies``: float32 copies of an unfused loss. ``keeps_expert_output``: with the
    all-to-all dispatcher, rows that experts return are kept. `benchmarks/memory_published.py`
    chooses each again without a family of measurements, and predicts that family.
    """

    logit_copies: int = 2
    softmax_copies: int = 1
    keeps_expert_output: bool = True


@dataclass(frozen=True)
class MegatronOptions:
    """Options of Megatron alone.

    ``account`` "primus" is the account of Primus's own projection, to read its published figures;
    "torchtitan" keeps the same tensors per layer but PyTorch's own cross entropy.
    ``has_sequence_parallel``: norms, router and residuals are split over tensor parallelism too
    (``--sequence-parallel``). ``has_dropout``: a mask is kept after attention and MLP.
    ``optimizer_on_host`` is the share of the moments in host memory (Megatron-Bridge measured
    15.2 GB less with all of 15.3 GB moved; master weights stay). ``layout`` is
    ``--pipeline-model-parallel-layout``.
    """

    account: str = "megatron"
    has_sequence_parallel: bool = True
    has_dropout: bool = False
    offloaded_modules: frozenset[str] = frozenset()
    optimizer_on_host: float = 0.0
    layout: str | None = None
    counts: Counts = Counts()

    def __post_init__(self) -> None:
        """Check names and the share."""
        if self.account not in ACCOUNTS:
            raise SpecError(
                f"account: expected one of {', '.join(ACCOUNTS)}, found {self.account!r}."
            )
        unknown = sorted(self.offloaded_modules - set(OFFLOADABLE))
        if unknown:
            raise SpecError(
                f"offloaded modules: expected some of {', '.join(OFFLOADABLE)}, "
                f"found {', '.join(unknown)}."
            )
        if not 0 <= self.optimizer_on_host <= 1:
            raise SpecError(
                "optimizer on host: expected a share from 0 to 1, "
                f"found {self.optimizer_on_host:g}."
            )


# One value, or one per plan.
Count: TypeAlias = int | npt.NDArray[Any]
Amount: TypeAlias = int | float | npt.NDArray[Any]
Real: TypeAlias = float | npt.NDArray[np.floating[Any]] | npt.NDArray[np.signedinteger[Any]]


def ceil_div(number: Count, divisor: Count) -> Count:
    """The quotient, rounded up."""
    return -(-number // divisor)


def smaller(one: Amount, other: Amount) -> Amount:
    """The smaller of two, entry by entry."""
    if isinstance(one, int | float) and isinstance(other, int | float):
        return min(one, other)  # a tenth of the time of numpy's, and taken thousands of times
    return _plain(np.minimum(one, other))


def larger(one: Amount, other: Amount) -> Amount:
    """The larger of two, entry by entry."""
    if isinstance(one, int | float) and isinstance(other, int | float):
        return max(one, other)
    return _plain(np.maximum(one, other))


def whole(amount: Amount) -> Amount:
    """Rounded to whole bytes, so that rows sum to their total exactly."""
    if isinstance(amount, int):
        return amount
    rounded = np.rint(amount).astype(np.int64)
    return int(rounded) if rounded.ndim == 0 else rounded


def _plain(amount: Amount) -> Amount:
    """Python's number where numpy made a scalar of its own of one."""
    if isinstance(amount, np.generic):
        value: Amount = amount.item()
        return value
    return amount


OPTIMIZERS = ("adamw", "adafactor", "muon", "sgd")
OFFLOADS = ("activations", "optimizer")
OTHER_PHASES = ("start", "restore", "evaluation", "checkpoint")
"""What a run does beside its step, in order."""
MOST_TOKENS = 2**24
"""Of a sequence: sizes of [S, S] arrays stay within what 64 bits count."""
GPU_FRACTION = 0.93


@dataclass(frozen=True)
class Precision:
    """Number format of each class of tensors; each stands for itself and overrides any config.

    ``master`` is a second copy of the weights that the optimizer keeps (None: it works on
    ``weights``), ``experts`` that of the experts' products where it differs from ``compute``
    (an fp8 format; None: the same).
    """

    compute: str = "bfloat16"
    weights: str = "bfloat16"
    master: str | None = None
    first_moment: str = "bfloat16"
    second_moment: str = "bfloat16"
    gradients: str = "bfloat16"
    logits: str = "float32"
    experts: str | None = None

    def __post_init__(self) -> None:
        """Check each name."""
        for name in self.__dataclass_fields__:
            dtype = getattr(self, name)
            if dtype is not None:
                check_dtype(f"precision {name}", dtype, DTYPE_BYTES)


@dataclass(frozen=True)
class Setting:
    """One training run.

    ``framework`` says whose program it is: MaxText's, the bundled model's, or Megatron's (which
    Primus runs), by a name of `moeprof.projector.framework`. ``pdbs`` sequences of ``sequence``
    tokens go through a device in one microbatch (Megatron: micro batch size), ``microbatches`` of
    them make a step; ``pdbs`` and ``sequence`` are None where not known: what depends on them is
    unknown then, not zero. ``overload`` is rows that the fullest rank receives over those of an
    even routing; None: what the strategy sizes its buffers for (in JAX the worst case), or even
    (Megatron, which allocates what arrives). ``layers_per_stage`` gives each stage its layers, in
    order, where the split is uneven. ``recomputed_layers`` limits recomputation to that many layers
    of a stage (None: all).
    """

    model: ModelSpec
    plan: ParallelPlan
    strategy: Strategy
    hardware: HardwareSpec
    sequence: int | None = 4096
    pdbs: int | None = 1
    microbatches: int = 1
    framework: str = DEFAULT
    schedule: str = "1f1b"
    optimizer: str = "adamw"
    precision: Precision = field(default_factory=Precision)
    mem_fraction: float = GPU_FRACTION
    overload: float | None = None
    ragged_buffer_factor: float | None = None
    vocab_tiling: int = 1
    attention: str = "flash"
    offload: frozenset[str] = frozenset()
    layers_per_stage: tuple[int, ...] | None = None
    recomputed_layers: int | None = None
    deepep_sms: int = 64
    is_scanned: bool = True
    has_fused_loss: bool = False
    has_distributed_optimizer: bool = True
    maxtext_build: str | None = None
    """Whose MaxText, see `build`."""
    has_float32_weight_sum: bool = True
    """MaxText's float32_weight_sum: the combine adds up rows in float32."""
    megatron: MegatronOptions = field(default_factory=MegatronOptions)
    """What Megatron alone lets a run choose."""
    phases: frozenset[str] = frozenset(OTHER_PHASES)
    """What the run comes to beside its step."""
    eval_pdbs: int | None = None
    """Sequences of a device at an evaluation; None: as at a step."""
    host_memory_bytes: int | None = None
    """Memory of one host; None: not known, and nothing is said of whether it suffices."""

    def __post_init__(self) -> None:
        """Check what has a fixed set of values, and ranges."""
        program = self.program
        _one_of("optimizer", self.optimizer, OPTIMIZERS)
        _one_of("attention", self.attention, ("flash", "whole"))
        for name in self.offload:
            _one_of("offload", name, OFFLOADS)
        for name in self.phases:
            _one_of("phases", name, OTHER_PHASES)
        program.check(self)
        if self.hardware.vendor == "Google" and self.strategy.kind == "sparse-gmm-deepep":
            raise SpecError(
                f"strategy {self.strategy.name}: DeepEP runs on GPUs, found {self.hardware.name}. "
                "Choose sparse-gmm."
            )
        if not 0 < self.mem_fraction <= 1:
            raise SpecError(
                f"mem-fraction: expected a share of the device's memory above 0 and up to 1, "
                f"found {self.mem_fraction:g}."
            )
        for name in (
            *("sequence", "pdbs", "microbatches", "vocab_tiling", "deepep_sms"),
            *("eval_pdbs", "host_memory_bytes"),
        ):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise SpecError(f"{name}: expected at least 1, found {value}.")
        if self.sequence is not None and self.sequence > MOST_TOKENS:
            raise SpecError(
                f"sequence: expected at most {MOST_TOKENS:,} tokens, found {self.sequence:,}."
            )
        if self.overload is not None and not self.overload >= 1:
            raise SpecError(
                "imbalance: expected at least 1, since the fullest rank receives no less than its "
                f"even share, found {self.overload:g}."
            )
        factor = self.ragged_buffer_factor
        if factor is not None and not factor > 0:
            raise SpecError(f"ragged_buffer_factor: expected a number above 0, found {factor:g}.")

    @property
    def program(self) -> Framework:
        """Whose program it is."""
        return framework(self.framework)

    @property
    def build(self) -> str | None:
        """Which build of the program: as asked, else that of the device; None: there is one."""
        return self.maxtext_build or self.program.build_for(self.hardware)


def usual_of(hardware: HardwareSpec) -> dict[str, object]:
    """What a device is run with where nothing is said, by the fields of `Setting`.

    XLA is given `GPU_FRACTION` of a GPU, and all of a TPU. DeepEP takes 20 multiprocessors (DeepEP,
    deep_ep/buffer.py, num_sms; Megatron-LM, moe_deepep_num_sms); on AMD's 64 (Primus-Turbo).
    """
    return {
        "mem_fraction": 1.0 if hardware.vendor == "Google" else GPU_FRACTION,
        "deepep_sms": 20 if hardware.vendor == "NVIDIA" else 64,
    }


class Degrees(NamedTuple):
    """How far each thing is split, and the batch: numbers, or arrays of one shape."""

    data: Count
    fsdp: Count
    expert: Count
    tensor: Count
    context: Count
    pipeline: Count
    expert_tensor: Count
    virtual: Count
    pdbs: Count | None
    microbatches: Count
    sequence: Count | None


def degrees_of(setting: Setting) -> Degrees:
    """The degrees of a setting's own plan and batch, as numbers."""
    plan = setting.plan
    return Degrees(
        data=plan.data,
        fsdp=plan.fsdp,
        expert=plan.expert,
        tensor=plan.tensor,
        context=plan.context,
        pipeline=plan.pipeline,
        expert_tensor=plan.expert_tensor,
        virtual=plan.virtual,
        pdbs=setting.pdbs,
        microbatches=setting.microbatches,
        sequence=setting.sequence,
    )


def _one_of(what: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise SpecError(f"{what}: expected one of {', '.join(known)}, found {value!r}.")


def linear_layers_note(model: ModelSpec) -> str:
    """A sentence on what linear layers are counted as; empty without such layers."""
    if not model.linear_layers:
        return ""
    return (
        f"the {model.linear_layers} layers of linear attention have weights of their own; their "
        "activations are counted as those of softmax attention, and their states are not."
    )
