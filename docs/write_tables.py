"""Question: which tables does moeprof keep, and what does each column hold?

Prints docs/tables.md from the schemas themselves:

    python docs/write_tables.py > docs/tables.md
"""

from __future__ import annotations

import sys

from moeprof.analyzers.classify import CLASSES
from moeprof.analyzers.comparison.changes import CHANGES
from moeprof.analyzers.comparison.compare import MEMORY_CHANGES
from moeprof.analyzers.comparison.notes import SETTING_CHANGES
from moeprof.analyzers.comparison.step_change import STEP_CHANGES, TOKEN_CHANGES
from moeprof.analyzers.question import Drawing, Question
from moeprof.analyzers.registry import all_drawings, all_questions
from moeprof.analyzers.stages.projected import SCHEMA as SCHEDULES
from moeprof.tables import host_side, routing, trace
from moeprof.tables.schema import Column, Schema

INTRODUCTION = """\
# Tables

Written by `python docs/write_tables.py > docs/tables.md`; a test compares the two.

Times are int64 ns since the capture began, on the clock of the host that took them; sizes are
int64 bytes. The unit of a column stands behind its kind. Text is never missing; a figure that is
not known is NaN in a float64 column, `null` in JSON, and -1 in an int64 column that says so."""

STORED = """\
`moeprof export RUN --tables DIR` writes each of these, and the recorded routing, as
`DIR/<table>.parquet`; every command takes DIR in the place of the run. The metadata of a file has
`moeprof.table`, `moeprof.schema` (`moeprof.trace/1`) and `moeprof.columns`, a JSON list of name,
kind, unit and meaning. Labels are dictionaries, NaN is null. `DIR/trace.json` holds what is said of
the profile as a whole (`meta`), the checks (`trust`), and rows and bytes of each file."""

RECORDED = """\
Written by `moeprof.routing.record`, or by `moeprof capture --routing auto`. The metadata of a file
has `moeprof.recording`, the id of the capture, which stands in meta.json too; tables of another one
are left out ([trust](trust.md)). Where it has `moeprof.parts`, each of so many processes counted
the tokens of its own devices: read together they are added up, and left out if one is missing."""

DRAWINGS = """\
Answers that are pictures. `moeprof analyze RUN --json` has them under `drawings`, and so has the
page that `moeprof report` writes: each has its question, headline and notes, and under `data` a
list of values per column. A text column whose values repeat is `{"names": […], "codes": […]}`."""

TRACE = (
    (trace.EVENTS, "One row per piece of device work. A device may run several at once."),
    (trace.DEVICES, "One row per device that the profile knows, with or without work."),
    (trace.HLO_OPS, "One row per HLO instruction of every program that ran in the window."),
    (trace.EXECUTIONS, "One row per execution of a module on a device."),
    (trace.MODULES, "One row per program, whether it ran in the window or not."),
    (trace.STEPS, "One row per step found, the dropped ones included."),
    (trace.BUFFERS, "One row per logical buffer of the compiler's buffer assignment."),
    (trace.RENDEZVOUS, "One row per wait of a device of a CPU run for its peers."),
    (trace.MARKERS, "One row per step annotation that the user's program made."),
    (trace.DROPPED, "One row per kind of event that was read and left out."),
)
HOST_SIDE = (
    (
        host_side.LAUNCHES,
        "One row per call of the GPU runtime that put work on a device, by host and start.",
    ),
    (
        host_side.HOST_EVENTS,
        "One row per call, wait or annotation on a host whose kind is known. Calls that another "
        "calls are rows too, so times of a kind are unions, not sums.",
    ),
    (
        host_side.ALLOCATIONS,
        "One row per block that a device's memory pool gave or took back in the capture.",
    ),
    (host_side.HOST_FACTS, "One row per fact that capture wrote down about a host process."),
)
ROUTING = (
    (routing.ROUTING, "One row per step, layer and expert; an expert without a token has 0."),
    (routing.RECEIVED, "One row per step, layer, exchange group and rank."),
)
COMPARED = (
    (STEP_CHANGES, "The step, then the four times that add up to it."),
    (
        TOKEN_CHANGES,
        "The step's time per token; no row where its tokens are not known of both.",
    ),
    (CHANGES, "One row for all op time, one per component, one per op that both runs have or one."),
    (MEMORY_CHANGES, "The peak of the step's program, then its parts."),
    (SETTING_CHANGES, "One row per setting that differs, where capture made both runs."),
)


def document() -> str:
    """The whole of docs/tables.md."""
    parts = [
        INTRODUCTION,
        "## A profile: `moeprof.ingest.open_run`",
        STORED,
        *(_section(schema, rows) for schema, rows in TRACE),
        "## The host of a profile, read when looked at",
        *(_section(schema, rows) for schema, rows in HOST_SIDE),
        "## Recorded routing: `RUN/routing/*.parquet`",
        RECORDED,
        *(_section(schema, rows) for schema, rows in ROUTING),
        "## Findings: `moeprof analyze`",
        *map(_question, all_questions()),
        _section(CLASSES, "One row per HLO instruction: what the findings attribute its time to."),
        "## Drawings: `moeprof analyze --json`",
        DRAWINGS,
        *map(_drawing, all_drawings()),
        "## Schedules of a pipeline: `moeprof pipeline --schedule all`",
        _section(SCHEDULES, "One row per schedule that can run, the shortest iteration first."),
        "## What changed: `moeprof compare`",
        *(_section(schema, rows) for schema, rows in COMPARED),
    ]
    return "\n\n".join(parts)


def _question(question: Question) -> str:
    return _section(question.schema, _rows(question))


def _drawing(drawing: Drawing) -> str:
    page = f"Drawn beside [{drawing.beside}](questions/{drawing.beside}.md)."
    return _section(drawing.schema, f"{_rows(drawing)} {page}")


def _rows(asked: Question | Drawing) -> str:
    """What the docstring of the module that answers promises as its rows, as a sentence."""
    module = sys.modules[asked.run.__module__]
    rows = str(module.__doc__).partition("Returns: ")[2].partition("\n\n")[0]
    text = " ".join(rows.split())
    return text[:1].upper() + text[1:]


def _section(schema: Schema, rows: str) -> str:
    head = ["| column | kind | meaning |", "|---|---|---|"]
    return "\n".join([f"### {schema.name}", "", rows, "", *head, *map(_row, schema.columns)])


def _row(column: Column) -> str:
    unit = f", {column.unit}" if column.unit else ""
    return (
        f"| `{column.name}` | {column.kind}{unit} | {column.meaning.replace('|', chr(92) + '|')} |"
    )


if __name__ == "__main__":
    print(document())
