"""Memory projections with sizes that a test chooses."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from moeprof.projector.breakdown import MemoryBreakdown, Peak, Row, StageBreakdown
from moeprof.projector.levers import Lever
from moeprof.projector.setting import Setting
from moeprof.reports.memory.document import SCHEMA, MemoryDocument, MemoryRow, inputs_of, row_of
from moeprof.specs.hardware import load_hardware
from moeprof.specs.model import GqaSpec, ModelSpec
from moeprof.specs.plan import ParallelPlan
from moeprof.specs.strategy import parse_strategy

GIB = 2**30
MODEL = ModelSpec(
    layers=2, hidden=64, heads=4, attention=GqaSpec(2, 16), experts=4, top_k=2, moe_ffn=32,
    vocab=128, name="Tiny",
)  # fmt: skip


def setting(strategy: str = "sparse-gmm", pdbs: int | None = 1, **more: object) -> Setting:
    """One run on a card of 80 GiB."""
    card = dataclasses.replace(load_hardware("h100_sxm"), hbm_bytes=80 * GIB)
    values = {"mem_fraction": 0.9, "hardware": card} | more
    return Setting(MODEL, ParallelPlan(), parse_strategy(strategy), pdbs=pdbs, **values)


def part(name: str, pool: str, size: int | None, kind: str = "temporaries") -> Row:
    """A row of the account."""
    return Row(name, pool, kind, size, f"{name}: given", "a test", "exact")


def breakdown(
    of: Setting, args: int = 0, temp: int | None = 0, outside: int = 0, stages: int = 1
) -> MemoryBreakdown:
    """Sizes in bytes; with several stages the last holds all, the others half of temp."""
    made = []
    for stage in range(stages):
        size = temp if temp is None or stage == stages - 1 else temp // 2
        made.append(
            StageBreakdown(
                stage,
                (part("weights", "args", args, "params"),),
                (Peak("loss", (part("logits", "temp", size),)),),
                (part("reserve", "outside", outside, "runtime reserve"),),
            )
        )
    return MemoryBreakdown(of, tuple(made))


def cell(
    strategy: str,
    pdbs: int | None,
    *,
    levers: Sequence[Lever] | None = None,
    overload: float | None = None,
    mem_fraction: float = 0.9,
    **sizes: int | None,
) -> MemoryRow:
    """One row of the document."""  # fmt: skip
    run = setting(strategy, pdbs, mem_fraction=mem_fraction)
    return row_of(breakdown(run, **sizes), levers=levers, overload=overload)


def document(rows: Sequence[MemoryRow], largest: dict[str, int | None]) -> MemoryDocument:
    """A document whose shown cell is the first row."""
    first = rows[0]
    run = setting()
    return {
        "schema": SCHEMA,
        "inputs": inputs_of(run, (1_000_000_000, 250_000_000), "tiny"),
        "said": ["Not given, so taken: seq 4096."],
        "rows": list(rows),
        "largest_pdbs": largest,
        "largest_pdbs_with_room": largest,
        "largest_pdbs_tried": 4096,
        "first_to_break": dict.fromkeys(largest)
        | {
            row["strategy"]: {"pdbs": row["pdbs"], "what": row["breaks_first"]}
            for row in rows
            if row["verdict"] == "oom" and row["pdbs"]
        },
        "detail": {"strategy": first["strategy"], "pdbs": first["pdbs"]},
        "arguments": ["--model", "tiny"],
        "searched_by": ["--model", "tiny", "--devices", "64"],
    }
