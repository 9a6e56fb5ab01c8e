"""Question: what does a planned step take of one device: memory, work, time on the wire?"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from moeprof.analyzers.heap.at_peak import ARGUMENTS as TOGETHER
from moeprof.analyzers.heap.at_peak import AT_PEAK, grouped
from moeprof.analyzers.heap.contents import INPUTS, OPTIMIZER, WEIGHTS, is_optimizer
from moeprof.projector.any_step.program import Roofline
from moeprof.projector.framework import verdict_of
from moeprof.specs.hardware import HardwareSpec
from moeprof.tables.schema import Column, Schema

CONSTANTS = "constants"
NO_KIND = "argument, kind not known"
_WEIGHTS = re.compile(
    r"(?<![a-z])(params?|weights?|kernels?|bias|embeddings?|scale|model)(?![a-z])", re.IGNORECASE
)

ARGUMENTS = Schema(
    "planned_arguments",
    (
        Column("argument", "text", "", "its path"),
        Column("content", "text", "", "kind of tensor, as far as its path and type tell"),
        Column("shape", "text", "", "of the whole array"),
        Column("dtype", "text", "", "element type"),
        Column("split", "text", "", "parts of each dimension over the devices, as 8,1"),
        Column("size_bytes", "int64", "bytes", "on one device"),
        Column("is_donated", "bool", "", "whether results may take its memory"),
        Column("is_passed", "bool", "", "whether the program takes it: JAX drops what is unused"),
    ),
)
UNKNOWNS = Schema(
    "planned_unknowns",
    (
        Column("what", "text", "", "kind of thing that is not known"),
        Column("name", "text", "", "of which op, call or library"),
        Column("count", "int64", "count", "executions in a step, or ops; -1 where nothing tells"),
        Column("missing", "text", "", "what figures lack for it"),
    ),
)


def content_of(path: str, is_float: bool) -> str:
    """Kind of an argument by its path; one whose path says nothing is of no known kind."""
    if not is_float:
        return INPUTS
    if is_optimizer(path):
        return OPTIMIZER
    return WEIGHTS if _WEIGHTS.search(path) else NO_KIND


@dataclass(frozen=True, eq=False)
class StepPlan:
    """What a step takes of one of ``devices`` devices, by its compiler, without one of them.

    Bytes, FLOPs and seconds are of one device and one step. ``axes`` are the sizes of the mesh's
    axes. What figures lack is in ``unknowns``, a row each, and never counted as nothing known.
    Tables have a column per unit in their names: ``_bytes``, ``_s``, FLOP.

    Attributes:
        name: of the function.
        hardware: the device.
        devices: how many.
        axes: the mesh.
        compiler: which compiler, for which target.
        arguments_bytes: what the program is given.
        outputs_bytes: its results, those that take an argument's memory too.
        aliased_bytes: results that take an argument's memory.
        temporaries_bytes: XLA's arena, at its fullest.
        library_temporaries_bytes: the same where libraries compute every product, which the
            autotuner of a run may choose, product by product, in place of Triton's fused kernels;
            None where there is nothing to choose, or it is not known.
        is_range_known: False where that could not be compiled, of which ``notes`` say why.
        constants_bytes: arrays that the function closes over, and the compiler's own.
        buffers: what is there at the peak (schema ``at_peak``); rows sum to ``peak_bytes``.
        arguments: each array that the function is given.
        ops: what the program computes and moves, the costliest first.
        collectives: what devices send each other, the largest first.
        roofline: how long the step takes at the device's peaks, and at the rates it reaches.
        unknowns: what no figure counts.
        outside: bytes beside XLA's pool by name: estimates of libraries, with low confidence.
        mem_fraction: share of the device that XLA may take.
        compile_s: seconds that the compiler took.
        notes: what was assumed.
    """

    name: str
    hardware: HardwareSpec
    devices: int
    axes: Mapping[str, int]
    compiler: str
    arguments_bytes: int
    outputs_bytes: int
    aliased_bytes: int
    temporaries_bytes: int
    library_temporaries_bytes: int | None
    is_range_known: bool
    constants_bytes: int
    buffers: pd.DataFrame
    arguments: pd.DataFrame
    ops: pd.DataFrame
    collectives: pd.DataFrame
    roofline: Roofline
    unknowns: pd.DataFrame
    outside: Mapping[str, int]
    mem_fraction: float
    compile_s: float
    notes: tuple[str, ...]

    @property
    def peak_bytes(self) -> int:
        """Arguments, results of their own, temporaries and constants, of which `buffers` are."""
        own = self.outputs_bytes - self.aliased_bytes
        return self.arguments_bytes + own + self.temporaries_bytes + self.constants_bytes

    @property
    def peak_range(self) -> tuple[int, int]:
        """The least and the most that the peak is, in bytes, whatever kernels a run chooses.

        One figure twice where it is not known what libraries' kernels take.
        """
        other = self.library_temporaries_bytes
        more = 0 if other is None else other - self.temporaries_bytes
        return self.peak_bytes + min(more, 0), self.peak_bytes + max(more, 0)

    @property
    def pool_bytes(self) -> int:
        """What XLA may take of the device."""
        return int(self.hardware.hbm_bytes * self.mem_fraction)

    @property
    def left_bytes(self) -> int:
        """What the step leaves of the pool at the most that it takes; negative where it lacks."""
        return self.pool_bytes - self.peak_range[1]

    @property
    def verdict(self) -> str:
        """``fits``, ``oom``, or ``borderline``.

        That is within 5 % of the pool, either side, or where the kernels that a run chooses decide,
        or might, as what they take is not known.
        """
        if self.outside_bytes > self.hardware.hbm_bytes - self.pool_bytes:
            return "oom"
        return verdict_of(self.peak_range, self.pool_bytes, is_known=self.is_range_known)

    @property
    def fits(self) -> bool:
        """Whether the step leaves something of the pool, and libraries what is beside it."""
        has_room = self.outside_bytes <= self.hardware.hbm_bytes - self.pool_bytes
        return has_room and self.left_bytes >= 0

    @property
    def outside_bytes(self) -> int:
        """Sum of the estimates of what lies beside XLA's pool."""
        return sum(self.outside.values())

    @cached_property
    def memory(self) -> pd.DataFrame:
        """The peak by kind of tensor, the largest first; ``bytes`` sum to ``peak_bytes``."""
        return self.by("content")

    @cached_property
    def largest_buffers(self) -> pd.DataFrame:
        """The 20 largest buffers at the peak."""
        return self.buffers.nlargest(20, "size_bytes", keep="all").head(20).reset_index(drop=True)

    @property
    def flops(self) -> float | None:
        """Matrix FLOPs; None where those of an op are not known, which ``unknowns`` names."""
        multiplying = self.ops[self.ops["flops"].ne(0)]
        is_known = multiplying["flops"].notna().all() and multiplying["runs"].ge(0).all()
        return self.known_flops if is_known else None

    @property
    def known_flops(self) -> float:
        """Matrix FLOPs of the ops of which they are known."""
        return float((self.ops["flops"] * self.ops["runs"].clip(lower=0)).sum())

    @property
    def collective_bytes(self) -> float | None:
        """Bytes that cross the device's links; None where those of a collective are not known."""
        sent = self.collectives["sent_bytes"] * self.collectives["runs"].where(lambda n: n >= 0)
        return float(sent.sum()) if sent.notna().all() else None

    def by(self, *columns: str) -> pd.DataFrame:
        """`buffers` summed by some of its columns (content, component, layer_kind, phase, shape).

        Bytes, count, largest buffer; rows in order of bytes, which sum to ``peak_bytes``.
        """
        return grouped(self.buffers, list(columns)).pandas()

    def document(self) -> dict[str, Any]:
        """Its figures and tables as JSON can hold them; what is not known is None."""
        sizes = ("peak", "arguments", "outputs", "aliased", "temporaries", "constants")
        tables = ("memory", "largest_buffers", "arguments", "collectives", "unknowns")
        return {
            "axes": dict(self.axes),
            "devices": self.devices,
            "compiler": self.compiler,
            **{f"{name}_bytes": int(getattr(self, f"{name}_bytes")) for name in sizes},
            "verdict": self.verdict,
            "pool_bytes": self.pool_bytes,
            "library_temporaries_bytes": self.library_temporaries_bytes,
            "is_range_known": self.is_range_known,
            "peak_range_bytes": list(self.peak_range),
            "outside": dict(self.outside),
            "flops": self.flops,
            "known_flops": self.known_flops,
            "collective_bytes": self.collective_bytes,
            "at_least_s": self.roofline.at_least_s,
            "at_most_s": self.roofline.at_most_s,
            "compile_s": self.compile_s,
            **{name: json.loads(getattr(self, name).to_json(orient="records")) for name in tables},
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        """The plan in words, with units."""
        from moeprof.projector.any_step.words import described

        return described(self)

    def __repr__(self) -> str:
        """What it is, in one line."""
        from moeprof.projector.any_step.words import verdict_text

        where = f"{self.devices} × {self.hardware.name}"
        return f"<moeprof plan of {self.name} for {where}: {verdict_text(self)}>"


def with_contents(buffers: pd.DataFrame, arguments: pd.DataFrame, constants: int) -> pd.DataFrame:
    """`AT_PEAK` with the contents of arguments by their paths, and a row of constants.

    Where buffers do not tell arguments apart (jax 0.7), the program's parameters do.
    """
    contents = dict(zip(arguments["argument"], arguments["content"], strict=True))
    told = buffers["op"].map(contents).astype("object").where(buffers["component"].eq(""))
    table = buffers.assign(content=told.fillna(buffers["content"]).astype("str"))
    rows = []
    is_lump = table["content"].eq(TOGETHER)
    if is_lump.any() and int(table["size_bytes"][is_lump].sum()) == arguments["size_bytes"].sum():
        passed = arguments[arguments["is_passed"]]
        rows = [
            {"content": row["content"], "op": row["argument"], "size_bytes": row["size_bytes"]}
            for row in passed.to_dict("records")
        ]
        table = table[~is_lump]
    if constants:
        rows.append({"content": CONSTANTS, "size_bytes": constants})
    blank = dict.fromkeys(("component", "layer_kind", "phase", "op", "shape", "source"), "")
    return pd.concat([table, AT_PEAK.frame([{**blank, **row} for row in rows])], ignore_index=True)
