"""Question: what must hold before a figure is shown, and which figures fall with it?

A law compares what was expected with what was found: launches with kernels, the parts of a step
with its length. Laws of the input are judged where the input is read (`moeprof.ingest.trust`), laws
of the answer beside the questions (`moeprof.analyzers.laws`). All laws together are the trust
record. The registry has each name once, in the order of the record and docs/trust.md; a test
compares it with the laws that records hold.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, NamedTuple

JAX, PYTORCH = "jax", "pytorch"
"""Frameworks whose traces are read."""
WITHOUT_GRAPHS = {
    JAX: "capture with XLA_FLAGS=--xla_gpu_enable_command_buffer=",
    PYTORCH: "profile a step that is not replayed as a CUDA graph",
}
"""What gives every kernel its own op again."""

Verdict = Literal["ok", "warn", "fail", "unchecked"]
"""Unchecked: the data that the law compares is not there, so it neither holds nor is broken."""

Figure = float | int | str | None


class Need(StrEnum):
    """What a record must carry for the figures of a question to be right."""

    DEVICE_TIMES = "times of device work"
    PIECE_TIMES = "lengths of single kernels and copies"
    DEVICE_CLOCKS = "devices of a host on one clock"
    EVERY_DEVICE = "every device of the run, with its rank"
    HOST_RECORD = "launches and calls of the host, whole"
    WHOLE_STEPS = "all work of a step, inside of it"
    INTERVALS = "the time from one step to the next, in parts"
    COMPONENTS = "op time that components add up to"
    NESTING = "which ops run inside of others, and which wait"
    PROGRAMS = "compiled programs, with their buffers"
    PROGRAMS_THAT_RAN = "which of the programs ran"
    ROUTING = "recorded routing"
    RECEIVED = "recorded counts of rows that ranks received"


@dataclass(frozen=True)
class Scope:
    """Figures of one question that are withheld: only those that match all that is given.

    ``figures`` are metrics of the headline and columns of the table; empty for all of them. Rows
    are chosen by their columns ``host``, ``device``, ``step`` and ``op``; "" and -1 stand for any.
    Metrics of the headline fall only where no row is chosen: they are then about the whole. With
    ``need`` in the place of a question it is about every question that has this need; the trust
    record names each of them.
    """

    question: str = ""
    figures: tuple[str, ...] = ()
    host: str = ""
    device: int = -1
    step: int = -1
    op: str = ""
    need: Need | None = None

    @property
    def chooses_rows(self) -> bool:
        """Whether it is about some rows alone."""
        return bool(self.host or self.op) or self.device != -1 or self.step != -1


@dataclass(frozen=True)
class Law:
    """One comparison that was made before any figure was taken from a profile.

    ``expected`` and ``found`` are what was compared, in ``unit``; None where the law compares no
    figures. ``breaks`` is what the fault takes away: no figure is shown of a question that needs
    any of it. ``scopes`` are the parts of others that it falsifies. Only a law that failed or warns
    has any. ``withholds`` names the questions that fall: those who judge do not know them, the
    trust record adds them (`moeprof.analyzers.laws`).
    """

    check: str
    verdict: Verdict
    detail: str
    breaks: tuple[Need, ...] = ()
    expected: Figure = None
    found: Figure = None
    unit: str = ""
    scopes: tuple[Scope, ...] = ()
    withholds: tuple[str, ...] = ()

    def withholds_figures(self, question: str, figures: tuple[str, ...] = ()) -> bool:
        """Whether it withholds one of these figures of a question whole, without `figures` any.

        A figure of which some rows alone are withheld is not. As long as no question is named, what
        breaks a need may withhold each of them.
        """
        if self.breaks and not self.withholds:
            return True
        return question in self.withholds or any(
            (scope.need is not None or scope.question == question)
            and not scope.chooses_rows
            and not (figures and scope.figures and set(figures).isdisjoint(scope.figures))
            for scope in self.scopes
        )

    @property
    def withholds_any(self) -> bool:
        """Whether any figure is not shown because of it."""
        return bool(self.breaks or self.withholds or self.scopes)


class LawInfo(NamedTuple):
    """A law by name: what it compares, and what falls with it.

    ``breaks`` are the needs that it can break, each of which withholds every question that has it,
    and ``when`` says where not all of them do. ``figures`` are what falls of other questions.
    """

    name: str
    compares: str
    breaks: tuple[Need, ...] = ()
    when: str = ""
    figures: str = ""


_TIMES = (Need.DEVICE_TIMES,)
_BY_LAUNCH = "launch latency, queue, causes of gaps"

OF_THE_INPUT = (
    LawInfo("profile", "profiles of a run folder with the processes of its record", tuple(Need)),
    LawInfo(
        "truncated",
        "the bytes of a file with what could be read",
        (Need.HOST_RECORD,),
        "of the hosts whose file is damaged",
    ),
    LawInfo(
        "device_work",
        "devices with work, with one at least",
        (Need.DEVICE_TIMES, Need.PROGRAMS_THAT_RAN, Need.PROGRAMS),
        "the last of a cut file alone",
    ),
    LawInfo(
        "programs",
        "programs that ran with those of the profile",
        (Need.PROGRAMS, Need.NESTING),
        "the last on CPU devices alone",
        "on GPUs the shares of MoE and of other parts",
    ),
    LawInfo("resolved", "device time with the part that has an HLO instruction"),
    LawInfo(
        "durations",
        "lengths of pieces with what their stream allows",
        (Need.PIECE_TIMES,),
        "where kernels have no length",
    ),
    LawInfo("time_stamps", "stamps with those that can be"),
    LawInfo("recorded_once", "pieces of device work with those that repeat another one exactly"),
    LawInfo("steps", "steps found with steps used"),
    LawInfo("step_order", "the order of steps with that of their numbers", _TIMES),
    LawInfo("strays", "device time during steps with the part of executions in no step"),
    LawInfo("dropped", "events that the profiler says it dropped, with none", _TIMES),
    LawInfo(
        "processes",
        "devices that programs and the run record name with those there",
        (Need.EVERY_DEVICE,),
    ),
    LawInfo(
        "ranks", "ids of devices with the run record and the files' names", (Need.EVERY_DEVICE,)
    ),
    LawInfo("one_run", "when and what the files recorded: of one run or of several", _TIMES),
    LawInfo(
        "run_record",
        "the run record and what its processes wrote with the profiles: dates, files, ids",
    ),
    LawInfo(
        "routing_record",
        "recorded routing with the record and the profile: ids, steps, anything counted at all",
    ),
    LawInfo(
        "clocks",
        "ends of the same collectives on several hosts; of processes of one machine, that machine",
    ),
    LawInfo(
        "device_clocks",
        "ends of the same collectives on the devices of a host",
        (Need.DEVICE_CLOCKS,),
        figures=f"waits; {_BY_LAUNCH}",
    ),
    LawInfo("profiler", "errors that the profiler reported, with none"),
    LawInfo("program_ids", "names of programs that events give with those of the profile"),
    LawInfo("step_ways", "steps by annotations, executions, launches and by what capture counted"),
    LawInfo(
        "causality",
        "starts of device work with those of its launches",
        figures=_BY_LAUNCH,
    ),
    LawInfo(
        "launches",
        "launches on the host with work on the device, per device and step",
        (Need.DEVICE_TIMES, Need.EVERY_DEVICE),
        "the first where no step is left, else the last where a device is left out",
        "steps and devices that lack work",
    ),
    LawInfo(
        "devices",
        "devices that ran programs with those that have a record",
        (Need.EVERY_DEVICE,),
        figures="rows of the devices without one",
    ),
    LawInfo(
        "last_kernels",
        "the last piece of each stream with its like",
        figures="the step that holds it",
    ),
    LawInfo("stream_time", "work on one stream with the time that passed", _TIMES),
    LawInfo(
        "host_launches",
        "launches that device work names with those on the host",
        _TIMES,
        "where such work lies beside the steps",
        f"number of launches, {_BY_LAUNCH}",
    ),
    LawInfo(
        "pieces",
        "pieces of each execution with those of the others of its program, and with its first ones",
        _TIMES,
        "where every step lacks some",
        "steps that lack some",
    ),
    LawInfo("profiling_cost", "recorded steps with those before and after the window"),
    LawInfo("device_state", "clocks, throttling and processes of GPUs in the window"),
    LawInfo("format", "what a JSON copy of a profile holds with what a profile does"),
    LawInfo("merged", "processes in one JSON with those that can be told apart", _TIMES),
    LawInfo("forward_ops", "nodes of PyTorch's autograd, with those whose forward op is there"),
    LawInfo("derived_lines", "work beside the streams of a JSON trace, with none"),
)
OF_THE_ANSWER = (
    LawInfo(
        "outside_steps",
        "recorded device time with that in steps and named outside of them",
        (Need.WHOLE_STEPS,),
    ),
    LawInfo(
        "intervals",
        "the parts of each interval with its length",
        (Need.INTERVALS,),
        figures="rows of steps where they do not add up",
    ),
    LawInfo("components", "op time of steps with the sum of components", (Need.COMPONENTS,)),
    LawInfo("names", "op time whose component is a guess or not known with a twentieth of all"),
    LawInfo("hosts_end_together", "the last device work of a host with that of the others"),
    LawInfo(
        "tokens",
        "tokens sent with rows received, and layers of a step with each other",
        (Need.ROUTING, Need.RECEIVED),
        "the last of rows that nobody sent alone",
    ),
    LawInfo(
        "shares", "shares of a whole with the bounds of a share", figures="those outside of them"
    ),
    LawInfo(
        "bytes", "element types of operands with those of known size", figures="bytes of the ops"
    ),
)
REGISTRY = (*OF_THE_INPUT, *OF_THE_ANSWER)
"""All laws."""
