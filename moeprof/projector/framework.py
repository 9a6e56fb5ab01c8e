"""Question: whose program trains, and in what does that change how a run is planned?

A `Framework` owns what is its own: accounts of memory, options, checks of a plan, suggestions,
loads of stages, notes. Each is a folder of `moeprof.projector.frameworks` whose `FRAMEWORK` is its
object, and a line of `FRAMEWORKS`. Nothing else asks for a name: a setting's `program` is asked.
"""

from __future__ import annotations

import csv
import functools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from importlib import import_module
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from moeprof.errors import SpecError
from moeprof.specs.plan import ALL_AXES, AXES, ParallelPlan
from moeprof.specs.plan_checks import Batch, check_plan

if TYPE_CHECKING:  # what is asked of an object, in terms of what is built on it
    from moeprof.projector.breakdown import MemoryBreakdown, Phase, Row, StageBreakdown
    from moeprof.projector.frameworks.suggestions import Change
    from moeprof.projector.setting import Count, Degrees, Precision, Setting
    from moeprof.specs.hardware import HardwareSpec
    from moeprof.specs.model import ModelSpec
    from moeprof.specs.stages import StageLayers

FRAMEWORKS = {
    "maxtext": "moeprof.projector.frameworks.maxtext",
    "bundled": "moeprof.projector.frameworks.bundled",
    "megatron": "moeprof.projector.frameworks.megatron",
}
"""Name → the folder with its object, imported when a run is of it; the first is the default."""
DEFAULT = next(iter(FRAMEWORKS))


@functools.cache
def framework(name: str) -> Framework:
    """The object of a name.

    Raises:
        SpecError: there is none of that name.
    """
    if name not in FRAMEWORKS:
        raise SpecError(f"framework: expected one of {', '.join(FRAMEWORKS)}, found {name!r}.")
    found: Framework = import_module(FRAMEWORKS[name]).FRAMEWORK
    return found


def that_have(option: str) -> tuple[str, ...]:
    """Names of the frameworks that have an option."""
    return tuple(name for name in FRAMEWORKS if option not in framework(name).lacks)


# How far off an account is: one table for all, made of committed results by a benchmark.

Verdict = Literal["fits", "borderline", "oom", "unknown"]
BORDERLINE = 0.05
"""XLA rematerialises and reschedules to a budget near the limit, so sizes there are not sharp."""


def verdict_of(range_bytes: tuple[int, int], pool_bytes: int, *, is_known: bool = True) -> Verdict:
    """Of what takes the least and the most of a pool: ``fits``, ``borderline`` or ``oom``.

    Nothing surely fits of which it is not known whether it may take more.
    """
    least, most = (size / pool_bytes - 1 for size in range_bytes)
    if most < -BORDERLINE and is_known:
        return "fits"
    return "oom" if least > BORDERLINE else "borderline"


_BANDS = "errors.csv"
NOT_MEASURED = 0.10
"""Half width of the band of an account that was measured on no plan, or on fewer than
`LEAST_PLANS`, where what was measured does not need more."""
LEAST_PLANS = 10


@dataclass(frozen=True)
class ErrorBand:
    """How far what was measured lay from what an account projects.

    ``share`` is the half width around the projected arena (``of`` "arena"), or around arguments and
    arena together ("total"): at most one in ten of ``plans`` lies beyond it. ``largest`` is the
    largest of measured / projected − 1. Without plans it is `NOT_MEASURED`, and ``source`` empty.
    """

    share: float
    of: Literal["arena", "total"] = "arena"
    plans: int = 0
    largest: float | None = None
    source: str = ""

    def erring(self, args: Any, temp: Any) -> Any:
        """What the share is of: bytes, or an array of them."""
        return temp if self.of == "arena" else args + temp


Bands = tuple[ErrorBand, ErrorBand]
"""Of the arena with XLA's own products, and of the one with libraries'."""


def doubtful_bytes(bands: Bands, args: Any, temps: tuple[Any, Any], pool: Any) -> tuple[Any, Any]:
    """How far below and above args + temps[0] a size may lie before its verdict is borderline.

    Bytes, or arrays of them. Either arena counts with its band's half width, and with no less than
    `BORDERLINE` of the pool.
    """
    below, beyond = (
        np.maximum(band.share * band.erring(args, temp), BORDERLINE * pool)
        for band, temp in zip(bands, temps, strict=True)
    )
    return below, np.maximum(below, temps[1] - temps[0] + beyond)


@dataclass(frozen=True)
class Measured:
    """A line of the table: of which plans a band is. An empty text stands for any.

    ``strategy`` is a strategy's kind, or "no experts"; ``hosts`` "one" or "several", whose devices
    share fast links; ``kind`` "plain" where only data, weights and experts were split. ``end`` is
    "libraries" where libraries computed all products of the plans, which then are errors alone
    where they lie above.
    """

    framework: str
    build: str
    vendor: str
    strategy: str
    hosts: str
    kind: str
    end: str
    band: ErrorBand


@functools.cache
def measured_bands() -> tuple[Measured, ...]:
    """All lines of ``frameworks/errors.csv``; `benchmarks/error_bands.py` writes them."""
    text = files("moeprof.projector.frameworks").joinpath(_BANDS).read_text(encoding="utf-8")
    return tuple(_read(row) for row in csv.DictReader(text.splitlines()))


def _read(row: Mapping[str, str]) -> Measured:
    of: Literal["arena", "total"] = "total" if row["of"] == "total" else "arena"
    band = ErrorBand(
        share=float(row["share"]),
        of=of,
        plans=int(row["plans"]),
        largest=float(row["largest"]),
        source=row["source"],
    )
    names = (field.name for field in fields(Measured) if field.name != "band")
    return Measured(**{name: row[name] for name in names}, band=band)


class Framework(ABC):
    """One program that trains. Facts are those of a JAX program where a framework says no other."""

    name: str
    title: str
    """How it is called."""
    lacks: tuple[str, ...] = ()
    """Options that others have: they would change nothing, so they are refused."""
    compiler: str = ""
    """Module and function that compiles the step of a setting alone, imported when asked."""
    builds: tuple[str, ...] = ()
    """Releases whose accounts differ, where there are several."""

    # How devices and batches are laid out.
    axes: tuple[str, ...] = ALL_AXES
    """Degrees whose product is the number of devices; experts lie inside the others where they
    are not among them."""
    batch_axes: tuple[str, ...] = AXES
    """Degrees each of whose devices take sequences of their own."""
    open_degrees: tuple[str, ...] = ("fsdp", "dp")
    """Degrees that take what is left of the devices: the first that is not said."""
    missing_axes: tuple[str, ...] = ()
    """Degrees that are always 1."""
    sequence_pieces: int = 1
    """Pieces that each part of context parallelism takes of a sequence."""
    schedules: tuple[str, str] = ("gpipe", "circular")
    """Order of a pipeline with one chunk of layers per stage, and with several."""
    searched_schedule: str = "circular"
    runs_stages_as_one: bool = True
    """Whether every stage of a pipeline runs one program, which has embedding and head."""
    keeps_global_batch: bool = False
    """Whether fewer replicas take more microbatches, also without a pipeline."""

    # What is compared and proposed where nothing is asked.
    strategies: tuple[str, ...] = (
        "dense-cf1.25",
        "sparse-gmm",
        "sparse-gmm-deepep",
        "sparse-ragged-dot",
    )
    """What ``all`` stands for."""
    searched_remats: tuple[str, ...] = ("full",)
    compared_remats: tuple[str, ...] = ("none", "full")
    compares_products: bool = True
    """Whether what a grouped product costs beside its alternative follows from operations and
    bytes."""
    smaller_loss: Literal["tiles", "fused"] = "tiles"
    """How the loss is made to keep less."""

    # Memory.
    has_pool: bool = True
    """Whether XLA takes a share of the device; PyTorch's allocator takes what others leave."""
    allocates_what_arrives: bool = False
    """Whether buffers of routed rows are as large as what arrives, not sized beforehand."""
    gradients_follow_weights: bool = False
    """Whether gradients have the number format of the weights, whatever is asked."""
    trains_router_bias: bool = True

    # Time.
    gathers_weights: bool = True
    """Whether weights are split over FSDP and gathered layer by layer."""
    launches_each_kernel: bool = False
    """Whether the host launches kernel by kernel, and waits for counts of the device."""
    overlaps_exchange: bool = False
    """Whether an exchange can run beside another microbatch of a pipeline."""
    has_flash_attention: bool = True
    fitted_on: tuple[str, ...] = ()
    """Devices whose rates were fitted to published throughputs of such a program."""

    @property
    def folds_experts(self) -> bool:
        """Whether expert parallelism lies inside the other degrees, and takes no devices."""
        return "expert" not in self.axes

    def check(self, setting: Setting) -> None:
        """Refuse what the program cannot be run with; here a build of another one.

        Raises:
            SpecError: with the choices.
        """
        if setting.maxtext_build is not None:
            raise SpecError(
                f"maxtext_build {setting.maxtext_build}: framework {self.name} has no MaxText. "
                "Leave it out, or choose framework maxtext."
            )

    def check_plan(
        self, plan: ParallelPlan, model: ModelSpec, devices: int | None, batch: Batch
    ) -> None:
        """Refuse a plan that does not fit model, devices or batch.

        Raises:
            PlanError: all complaints at once.
        """
        check_plan(plan, model, devices, batch)

    def build_for(self, hardware: HardwareSpec) -> str | None:
        """The build that a device is run with where none is asked for; None: there is one."""
        return self.builds[0] if self.builds else None

    @abstractmethod
    def precision(self, asked: Mapping[str, str], weights: str) -> Precision:
        """Number formats, by the fields that were asked for; ``weights`` where they were not."""

    def worst_overload(self, setting: Setting) -> float | None:
        """The largest that a routing can be; None: what buffers are sized for."""
        return None

    def room(self, breakdown: MemoryBreakdown, stage: StageBreakdown) -> float:
        """What args and temp of a stage may take."""
        return breakdown.pool_bytes

    def gives_each_slot_a_row(self, setting: Setting) -> bool:
        """Whether DeepEP's rows are fanned out to experts of other ranks too."""
        return True

    def is_plain(self, setting: Setting) -> bool:
        """Whether a setting, its plan aside, is like those that its account was measured on."""
        return True

    def has_library_end(self, setting: Setting) -> bool:
        """Whether the account says what is held where libraries compute all products."""
        return False

    def is_plain_plan(
        self, setting: Setting, plan: ParallelPlan | Degrees, microbatches: Count
    ) -> Count:
        """Whether a setting with a plan, or with many, is like those measured: 1, else 0."""
        return (plan.tensor * plan.context * plan.pipeline * microbatches == 1) * 1

    def error_band(self, setting: Setting, end: str = "") -> ErrorBand:
        """What was measured of the account that a setting is projected by, or of an ``end``."""
        plan = setting.plan
        is_far = plan.degree(self.axes) > setting.hardware.slice_devices
        is_plain = bool(self.is_plain_plan(setting, plan, setting.microbatches))
        return self.error_band_of(setting, end, is_far=is_far, is_plain=is_plain)

    def error_band_of(
        self, setting: Setting, end: str = "", *, is_far: bool, is_plain: bool
    ) -> ErrorBand:
        """The same of a plan on several hosts or one, which splits less than tensors or more."""
        if end and not self.has_library_end(setting):
            return ErrorBand(0.0)
        kind = setting.strategy.kind if setting.model.experts else "no experts"
        own = {
            "framework": (self.name,),
            "build": ("", setting.build or ""),
            "vendor": ("", setting.hardware.vendor),
            "strategy": ("", kind),
            "hosts": ("", "several" if is_far else "one"),
            "kind": ("", "plain") if is_plain and self.is_plain(setting) else ("",),
            "end": (end,),
        }
        for line in measured_bands():
            if all(getattr(line, name) in values for name, values in own.items()):
                return line.band
        return ErrorBand(NOT_MEASURED)

    @abstractmethod
    def stages(self, setting: Setting, pipeline: int, virtual: int) -> tuple[StageLayers, ...]:
        """What each stage of a pipeline holds."""

    @abstractmethod
    def breakdown(self, setting: Setting, degrees: Degrees, stage: StageLayers) -> StageBreakdown:
        """What fills one stage; degrees may be arrays, but for pipeline, virtual, microbatches."""

    @abstractmethod
    def phases(
        self,
        setting: Setting,
        degrees: Degrees,
        stage: StageLayers,
        step: StageBreakdown,
        *,
        with_host: bool = True,
    ) -> tuple[Phase, ...]:
        """What the run does beside its step with a stage that holds ``step`` at one.

        Those of ``setting.phases`` that the program has. Degrees as of `breakdown`; a host's rows
        are of one plan alone, so they can be left out.
        """

    @abstractmethod
    def on_host(self, setting: Setting, degrees: Degrees, stage: StageLayers) -> tuple[Row, ...]:
        """What a step keeps in the memory of one host: of all devices there together."""

    @abstractmethod
    def notes(self, breakdown: MemoryBreakdown) -> tuple[str, ...]:
        """Sentences on what a projection assumed, and on what it cannot know."""

    @abstractmethod
    def suggestions(self, setting: Setting) -> Iterator[Change]:
        """Changes that may buy memory."""
